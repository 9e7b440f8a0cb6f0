// SPDX-License-Identifier: Apache-2.0
//! Actors as tasks: one tokio task and one mpsc channel (its mailbox) per actor.
//! Usage: tokio-bench WORKLOAD, with WORKERS (default 2) threads.
use std::sync::Arc;
use std::time::Instant;
use tokio::spawn;
use tokio::sync::{mpsc, oneshot};

#[cfg(not(feature = "unbounded"))]
mod mailbox {
    pub use tokio::sync::mpsc::{Receiver as Rx, Sender as Tx};
    pub fn mailbox<T>() -> (Tx<T>, Rx<T>) { tokio::sync::mpsc::channel(1024) }
    #[macro_export]
    macro_rules! tell { ($to:expr, $m:expr) => { assert!($to.send($m).await.is_ok()) } }
}
#[cfg(feature = "unbounded")]
mod mailbox {
    pub use tokio::sync::mpsc::{UnboundedReceiver as Rx, UnboundedSender as Tx};
    pub fn mailbox<T>() -> (Tx<T>, Rx<T>) { tokio::sync::mpsc::unbounded_channel() }
    #[macro_export]
    macro_rules! tell { ($to:expr, $m:expr) => { assert!($to.send($m).is_ok()) } }
}
use mailbox::*;

const WORK_ROUNDS: u32 = 600; // as in work.h
const WORK_SHARE: u64 = 20;

fn work(seed: u64) {
    let mut x = seed | 1;
    for _ in 0..WORK_ROUNDS { x ^= x << 13; x ^= x >> 7; x ^= x << 17; }
    assert_ne!(x, 0);
}

struct Msg { val: u64, from: u32 }

fn report(name: &str, total: f64, n: u64) { println!("{} {:.1}", name, total / n as f64) }
fn since(t: Instant) -> f64 { t.elapsed().as_nanos() as f64 }

async fn all<T>(done: &mut mpsc::UnboundedReceiver<T>, n: usize) {
    for _ in 0..n { assert!(done.recv().await.is_some()); }
}

// WORK: compute before each message is handled.
async fn pingpong<const WORK: bool>(name: &str, pairs: usize, trips: u64) {
    let (done, mut finished) = mpsc::unbounded_channel();
    let mut start = vec![];
    for _ in 0..pairs {
        let ((ping, mut ping_rx), (pong, mut pong_rx)) = (mailbox::<Msg>(), mailbox::<Msg>());
        let (to_ping, done) = (ping.clone(), done.clone());
        spawn(async move {
            while let Some(m) = pong_rx.recv().await {
                if WORK { work(m.val) }
                tell!(to_ping, Msg { val: m.val + 1, from: 1 });
            }
        });
        spawn(async move {
            let mut m = ping_rx.recv().await.unwrap();
            for _ in 0..trips {
                tell!(pong, Msg { val: m.val, from: 0 });
                m = ping_rx.recv().await.unwrap();
                if WORK { work(m.val) }
            }
            assert_eq!(m.val, trips);
            done.send(()).unwrap();
        });
        start.push(ping);
    }
    let t = Instant::now();
    for p in &start { tell!(p, Msg { val: 0, from: 0 }); }
    all(&mut finished, pairs).await;
    report(name, since(t), 2 * pairs as u64 * trips);
}

async fn flood(name: &str, producers: u64, each: u64) {
    let (counter, mut rx) = mailbox::<Msg>();
    let counting = spawn(async move {
        let (mut n, mut sum) = (0, 0);
        while let Some(m) = rx.recv().await { n += 1; sum += m.val; }
        (n, sum)
    });
    let t = Instant::now();
    for from in 0..producers {
        let counter = counter.clone();
        spawn(async move {
            for val in 1..=each { tell!(counter, Msg { val, from: from as u32 }); }
        });
    }
    drop(counter);
    assert_eq!(counting.await.unwrap(), (producers * each, producers * (each * (each + 1) / 2)));
    report(name, since(t), producers * each);
}

async fn ring<const WORK: bool>(name: &str, tokens: usize, hops: u64) {
    const SIZE: usize = 1000;
    let (done, mut finished) = mpsc::unbounded_channel();
    let (txs, rxs): (Vec<_>, Vec<_>) = (0..SIZE).map(|_| mailbox::<Msg>()).unzip();
    for (i, mut rx) in rxs.into_iter().enumerate() {
        let (next, done) = (txs[(i + 1) % SIZE].clone(), done.clone());
        spawn(async move {
            while let Some(m) = rx.recv().await {
                if WORK { work(m.val) }
                if m.val == 0 { done.send(()).unwrap() } else { tell!(next, Msg { val: m.val - 1, from: m.from }) }
            }
        });
    }
    let t = Instant::now();
    for i in 0..tokens { tell!(txs[i * SIZE / tokens], Msg { val: hops, from: i as u32 }); }
    all(&mut finished, tokens).await;
    report(name, since(t), tokens as u64 * hops);
}

// One ping outstanding per actor; answers others' pings meanwhile.
async fn big<const WORK: bool>(name: &str, n: usize, pings: u64) {
    let (done, mut finished) = mpsc::unbounded_channel();
    let (txs, rxs): (Vec<_>, Vec<_>) = (0..n).map(|_| mailbox::<Msg>()).unzip();
    let txs = Arc::new(txs);
    let t = Instant::now();
    for (me, mut rx) in rxs.into_iter().enumerate() {
        let (txs, done) = (txs.clone(), done.clone());
        spawn(async move {
            let mut seed = me as u32 + 1;
            let mut next = || loop {
                seed = seed.wrapping_mul(69069).wrapping_add(1);
                let to = (seed >> 8) as usize % txs.len();
                if to != me { return (to, Msg { val: (seed as u64) << 1, from: me as u32 }) }
            };
            let (to, m) = next();
            tell!(txs[to], m);
            let mut left = pings;
            while let Some(m) = rx.recv().await {
                if WORK { work(m.val) }
                if m.val & 1 == 0 { tell!(txs[m.from as usize], Msg { val: m.val | 1, from: me as u32 }); continue }
                left -= 1;
                if left == 0 { done.send(()).unwrap(); continue }
                let (to, m) = next();
                tell!(txs[to], m);
            }
        });
    }
    all(&mut finished, n).await;
    report(name, since(t), 2 * n as u64 * pings);
}

async fn spawn_all(name: &str, n: u64, alive: u64) {
    let (me, mut rx) = mailbox::<u64>();
    let t = Instant::now();
    for i in 0..n {
        if i >= alive { rx.recv().await.unwrap(); }
        let (child, mut inbox) = mailbox::<(u64, Tx<u64>)>();
        spawn(async move {
            let (val, from) = inbox.recv().await.unwrap();
            tell!(from, val + 1);
        });
        tell!(child, (i, me.clone()));
    }
    for _ in 0..alive { rx.recv().await.unwrap(); }
    report(name, since(t), n);
}

fn rss() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4096.0
}

async fn idle(n: usize) {
    let (me, mut rx) = mailbox::<u64>();
    let mut handles = vec![None; n];    // touched: the table of handles is not charged
    let before = rss();
    for batch in handles.chunks_mut(1000) {
        for h in batch.iter_mut() {
            let (child, mut inbox) = mailbox::<u64>();
            let me = me.clone();
            spawn(async move {
                let mut sum = 0;
                while let Some(v) = inbox.recv().await { sum += v; tell!(me, sum); }
            });
            *h = Some(child);
        }
        for h in batch.iter() { tell!(h.as_ref().unwrap(), 1); rx.recv().await.unwrap(); }
    }
    report("idle", rss() - before, n as u64);
    std::process::exit(0);
}

fn server() -> Tx<(u64, oneshot::Sender<u64>)> {
    let (tx, mut rx) = mailbox::<(u64, oneshot::Sender<u64>)>();
    spawn(async move { while let Some((v, reply)) = rx.recv().await { let _ = reply.send(v + 1); } });
    tx
}

async fn ask(server: Tx<(u64, oneshot::Sender<u64>)>, n: usize) -> Vec<u32> {
    let mut ns = Vec::with_capacity(n);
    for i in 0..n {
        let t = Instant::now();
        let (tx, rx) = oneshot::channel();
        tell!(server, (i as u64, tx));
        rx.await.unwrap();
        ns.push(t.elapsed().as_nanos() as u32);
    }
    ns
}

fn work_alone(n: u64) {
    let t = Instant::now();
    for i in 0..n { work(i) }
    report("work", since(t), n);
}

fn percentiles(name: &str, mut ns: Vec<u32>) {
    ns.sort_unstable();
    println!("{0}-p50 {1}\n{0}-p99 {2}", name, ns[ns.len() / 2], ns[ns.len() * 99 / 100]);
}

fn main() {
    let w = std::env::args().nth(1).unwrap_or_default();
    let workers = std::env::var("WORKERS").ok().and_then(|w| w.parse().ok()).unwrap_or(2);
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).build().unwrap();
    if w == "askext" { // block_on polls on the calling thread: it is outside the pool
        let _in = rt.enter();
        return percentiles("askext", rt.block_on(ask(server(), 100_000)));
    }
    let name = w.clone();
    let work = async move {
        match name.as_str() {
            "pingpong" => pingpong::<false>(&name, 1, 5_000_000).await,
            "pingpong64" => pingpong::<false>(&name, 64, 100_000).await,
            "counting" => flood(&name, 1, 10_000_000).await,
            "fanin" => flood(&name, 64, 100_000).await,
            "ring" => ring::<false>(&name, 1, 5_000_000).await,
            "ring64" => ring::<false>(&name, 64, 10_000_000 / 64).await,
            "big" => big::<false>(&name, 120, 20_000).await,
            "spawn" => spawn_all(&name, 1_000_000, 1_000_000).await,
            "churn" => spawn_all(&name, 1_000_000, 1_000).await,
            "idle" => idle(1_000_000).await,
            "ask" => percentiles("ask", ask(server(), 1_000_000).await),
            "work-pingpong64" => pingpong::<true>(&name, 64, 100_000 / WORK_SHARE).await,
            "work-ring64" => ring::<true>(&name, 64, 10_000_000 / 64 / WORK_SHARE).await,
            "work-big" => big::<true>(&name, 120, 20_000 / WORK_SHARE).await,
            "work" => work_alone(100_000),
            _ => std::process::exit(2), // not offered
        }
    };
    rt.block_on(async { rt.spawn(work).await.unwrap() }); // the driver runs on a worker too
}
