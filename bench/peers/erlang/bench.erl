%% SPDX-License-Identifier: Apache-2.0
%% Plain processes and plain sends: the fastest way to write each workload in Erlang.
%% Usage: erl +S 2:2 +P 2000000 -noshell -run bench main WORKLOAD
-module(bench).
-export([main/1]).

-define(CHECK(Ok), true = Ok).
-define(WORK_ROUNDS, 175).              % about 1 us with the JIT
-define(WORK_SHARE, 20).                % as in work.h

main([W]) ->
    %% A fresh process: the one started by -run has a large heap already.
    {Pid, Ref} = spawn_monitor(fun() -> work(list_to_atom(W)) end),
    receive {'DOWN', Ref, process, Pid, normal} -> halt(0);
            {'DOWN', Ref, process, Pid, unknown} -> halt(2);
            {'DOWN', Ref, process, Pid, Why} -> io:format(standard_error, "~p~n", [Why]), halt(1)
    end.

work(pingpong) -> pingpong(pingpong, false, 1, 5000000);
work(pingpong64) -> pingpong(pingpong64, false, 64, 100000);
work(counting) -> flood(counting, 1, 10000000);
work(fanin) -> flood(fanin, 64, 100000);
work(ring) -> ring(ring, false, 1, 5000000);
work(ring64) -> ring(ring64, false, 64, 10000000 div 64);
work(big) -> big(big, false, 120, 20000);
work(spawn) -> spawn_all(spawn, 1000000, 1000000);
work(churn) -> spawn_all(churn, 1000000, 1000);
work(idle) -> idle(1000000);
work(ask) -> ask(1000000);
work('work-pingpong64') -> pingpong('work-pingpong64', true, 64, 100000 div ?WORK_SHARE);
work('work-ring64') -> ring('work-ring64', true, 64, 10000000 div 64 div ?WORK_SHARE);
work('work-big') -> big('work-big', true, 120, 20000 div ?WORK_SHARE);
work(work) -> work_alone(100000);
work(_) -> exit(unknown).

now_ns() -> erlang:monotonic_time(nanosecond).
report(Name, Total, N) -> io:format("~s ~.1f~n", [Name, Total / N]).
repeat(N, F) -> [F(I) || I <- lists:seq(1, N)].
await(N) -> [receive done -> ok end || _ <- lists:seq(1, N)].

%% The computing of the work-* workloads: xorshift32, because 64 bits would make bignums.
compute(V) -> compute(?WORK_ROUNDS, (V band 16#ffffffff) bor 1).
compute(0, X) -> ?CHECK(X =/= 0);
compute(N, X) ->
    Y = X bxor ((X bsl 13) band 16#ffffffff),
    Z = Y bxor (Y bsr 17),
    compute(N - 1, Z bxor ((Z bsl 5) band 16#ffffffff)).
work_alone(N) ->
    T = now_ns(),
    repeat(N, fun compute/1),
    report(work, now_ns() - T, N).

%% pingpong; here and below W says whether to compute before each message is handled
pong(W) -> receive {From, V} -> W andalso compute(V), From ! {self(), V + 1}, pong(W) end.

ping(W, Main, Peer, Trips) ->
    receive go -> Peer ! {self(), 0}, ping_loop(W, Peer, Trips), Main ! done end.
ping_loop(W, _, 1) -> receive {_, V} -> W andalso compute(V) end;
ping_loop(W, Peer, N) ->
    receive {Peer, V} -> W andalso compute(V), Peer ! {self(), V + 1}, ping_loop(W, Peer, N - 1) end.

pingpong(Name, W, Pairs, Trips) ->
    Me = self(),
    Ps = repeat(Pairs, fun(_) -> Q = spawn(fun() -> pong(W) end), spawn(fun() -> ping(W, Me, Q, Trips) end) end),
    T = now_ns(),
    [P ! go || P <- Ps],
    await(Pairs),
    report(Name, now_ns() - T, 2 * Pairs * Trips).

%% counting, fanin
count(Sum, N) ->
    receive {get, From} -> From ! {total, Sum, N};
            V -> count(Sum + V, N + 1) end.
produce(_, 0) -> ok;
produce(To, N) -> To ! N, produce(To, N - 1).

flood(Name, Producers, Each) ->
    Me = self(),
    C = spawn(fun() -> count(0, 0) end),
    Ps = repeat(Producers, fun(_) -> spawn(fun() -> receive go -> produce(C, Each), Me ! done end end) end),
    T = now_ns(),
    [P ! go || P <- Ps],
    await(Producers),
    C ! {get, self()},
    receive {total, Sum, N} -> ?CHECK(N =:= Producers * Each), ?CHECK(Sum =:= Producers * (Each * (Each + 1) div 2)) end,
    report(Name, now_ns() - T, Producers * Each).

%% ring
hop(W, Main, Next) ->
    receive 0 -> W andalso compute(0), Main ! done, hop(W, Main, Next);
            V -> W andalso compute(V), Next ! V - 1, hop(W, Main, Next) end.

ring(Name, W, Tokens, Hops) ->
    Me = self(),
    First = spawn(fun() -> receive Next -> hop(W, Me, Next) end end),
    {_, All} = lists:foldl(fun(_, {Next, Acc}) -> P = spawn(fun() -> hop(W, Me, Next) end), {P, [P | Acc]} end,
                           {First, [First]}, lists:seq(2, 1000)),
    First ! hd(All),
    Ring = list_to_tuple(All),
    T = now_ns(),
    [element(1 + (I - 1) * 1000 div Tokens, Ring) ! Hops || I <- lists:seq(1, Tokens)],
    await(Tokens),
    report(Name, now_ns() - T, Tokens * Hops).

%% big: one ping outstanding per process; answers others' pings meanwhile
big_next(Peers, Seed) ->
    S = (Seed * 69069 + 1) band 16#ffffffff,
    case element(1 + (S bsr 8) rem tuple_size(Peers), Peers) of
        Self when Self =:= self() -> big_next(Peers, S);
        To -> To ! {ping, self(), S}, S
    end.
big_loop(W, Main, Peers, Seed, N) ->
    receive {ping, From, V} -> W andalso compute(V), From ! {pong, V + 1}, big_loop(W, Main, Peers, Seed, N);
            {pong, V} when N > 1 -> W andalso compute(V), big_loop(W, Main, Peers, big_next(Peers, Seed), N - 1);
            {pong, V} -> W andalso compute(V), Main ! done, big_loop(W, Main, Peers, Seed, 0) end.

big(Name, W, N, Pings) ->
    Me = self(),
    Ps = repeat(N, fun(I) -> spawn(fun() -> receive {peers, T} -> big_loop(W, Me, T, big_next(T, I), Pings) end end) end),
    T = now_ns(),
    [P ! {peers, list_to_tuple(Ps)} || P <- Ps],
    await(N),
    report(Name, now_ns() - T, 2 * N * Pings).

%% spawn, churn
once() -> receive {From, V} -> From ! V + 1 end.
spawn_loop(0, _) -> ok;
spawn_loop(N, 0) -> collect(1), spawn_loop(N, 1);
spawn_loop(N, Room) -> spawn(fun once/0) ! {self(), N}, spawn_loop(N - 1, Room - 1).
collect(0) -> ok;
collect(N) -> receive V when is_integer(V) -> collect(N - 1) end.

%% With the default on_heap queue every collection of this small-heap process walks its whole
%% mailbox: a million waiting replies make the run quadratic (minutes). off_heap is the remedy.
spawn_all(Name, N, Alive) ->
    process_flag(message_queue_data, off_heap),
    T = now_ns(),
    spawn_loop(N, Alive),
    collect(Alive),
    report(Name, now_ns() - T, N).

%% idle
stay(Last) -> receive {From, V} -> From ! V + 1, stay(Last + V) end.
rss() ->
    {ok, F} = file:open("/proc/self/statm", [read, raw]),
    {ok, L} = file:read(F, 100),
    file:close(F),
    list_to_integer(lists:nth(2, string:lexemes(L, " "))) * 4096.
idle(N) ->
    Me = self(),
    Batch = fun() -> [spawn(fun() -> stay(0) end) ! {Me, 1} || _ <- lists:seq(1, 1000)], collect(1000) end,
    erlang:garbage_collect(),
    Before = rss(),
    [Batch() || _ <- lists:seq(1, N div 1000)],
    erlang:garbage_collect(),
    report(idle, rss() - Before, N).

%% ask: a reference per request, as gen_server:call does, but without its monitor
serve() -> receive {From, Ref, V} -> From ! {Ref, V + 1}, serve() end.
ask_loop(_, _, 0) -> ok;
ask_loop(S, H, N) ->
    T = now_ns(),
    Ref = make_ref(),
    S ! {self(), Ref, N},
    receive {Ref, _} -> ok end,
    counters:add(H, min(1000000, (now_ns() - T) div 10 + 1), 1),
    ask_loop(S, H, N - 1).
percentile(H, I, Left) ->
    case Left - counters:get(H, I) of L when L > 0 -> percentile(H, I + 1, L); _ -> (I - 1) * 10 end.
ask(N) ->
    H = counters:new(1000000, []),      % histogram, 10 ns per bucket
    ask_loop(spawn(fun serve/0), H, N),
    io:format("ask-p50 ~b~nask-p99 ~b~n", [percentile(H, 1, N div 2), percentile(H, 1, N * 99 div 100)]).
