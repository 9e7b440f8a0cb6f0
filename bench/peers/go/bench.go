// SPDX-License-Identifier: Apache-2.0

// Actors as goroutines: one goroutine and one channel (its mailbox) per actor.
// Usage: bench CAPACITY WORKLOAD; capacity 0 makes every send a rendezvous.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sort"
	"strconv"
	"strings"
	"time"
)

type Msg struct {
	val  uint64
	from Mailbox
}
type Mailbox chan Msg

var capacity int
var working bool // a work-* workload: compute before each message is handled

const (
	workRounds = 600 // as in work.h
	workShare  = 20
)

func mailbox() Mailbox { return make(Mailbox, capacity) }

func check(ok bool, what string) {
	if !ok {
		fmt.Fprintln(os.Stderr, "wrong result:", what)
		os.Exit(1)
	}
}

func report(name string, total, n float64) { fmt.Printf("%s %.1f\n", name, total/n) }

func work(seed uint64) {
	x := seed | 1
	for i := 0; i < workRounds; i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	check(x != 0, "work") // it never is
}

func compute(v uint64) {
	if working {
		work(v)
	}
}

func since(t time.Time) float64 { return float64(time.Since(t).Nanoseconds()) }

func pong(me Mailbox) {
	for m := range me {
		compute(m.val)
		m.from <- Msg{m.val + 1, me}
	}
}

func ping(me, peer Mailbox, trips int, done chan uint64) {
	m := <-me
	for i := 0; i < trips; i++ {
		peer <- Msg{m.val, me}
		m = <-me
		compute(m.val)
	}
	done <- m.val
}

func pingpong(name string, pairs, trips int) {
	done := make(chan uint64, pairs)
	var start []Mailbox
	for i := 0; i < pairs; i++ {
		a, b := mailbox(), mailbox()
		go pong(b)
		go ping(a, b, trips, done)
		start = append(start, a)
	}
	t := time.Now()
	for _, a := range start {
		a <- Msg{}
	}
	for range start {
		check(<-done == uint64(trips), name)
	}
	report(name, since(t), float64(2*pairs*trips))
}

func flood(name string, producers, each int) {
	counter, done := mailbox(), make(chan uint64, 1)
	total := uint64(producers * each)
	go func() {
		sum := uint64(0)
		for n := uint64(0); n < total; n++ {
			sum += (<-counter).val
		}
		done <- sum
	}()
	t := time.Now()
	for i := 0; i < producers; i++ {
		go func() {
			for v := uint64(each); v > 0; v-- {
				counter <- Msg{val: v}
			}
		}()
	}
	check(<-done == total*uint64(each+1)/2, name)
	report(name, since(t), float64(total))
}

func ring(name string, tokens int, hops uint64) {
	const size = 1000
	done := make(chan bool, tokens)
	all := make([]Mailbox, size)
	for i := range all {
		all[i] = mailbox()
	}
	for i := range all {
		go func(me, next Mailbox) {
			for m := range me {
				compute(m.val)
				if m.val == 0 {
					done <- true
				} else {
					next <- Msg{val: m.val - 1}
				}
			}
		}(all[i], all[(i+1)%size])
	}
	t := time.Now()
	for i := 0; i < tokens; i++ {
		all[i*size/tokens] <- Msg{val: hops}
	}
	for i := 0; i < tokens; i++ {
		<-done
	}
	report(name, since(t), float64(tokens)*float64(hops))
}

// One ping outstanding per actor, so at most 120 messages exist and 64-slot mailboxes cannot
// deadlock (a cycle of two full ones needs 128). Rendezvous channels would.
func big(name string, n, pings int) {
	all, done := make([]Mailbox, n), make(chan bool, n)
	for i := range all {
		all[i] = mailbox()
	}
	t := time.Now()
	for i := range all {
		go func(me Mailbox, seed uint32) {
			next := func() {
				for to := me; ; {
					seed = seed*69069 + 1
					if to = all[(seed>>8)%uint32(n)]; to != me {
						to <- Msg{uint64(seed) << 1, me}
						return
					}
				}
			}
			left := pings
			next()
			for m := range me {
				compute(m.val)
				if m.val&1 == 0 {
					m.from <- Msg{m.val | 1, me}
				} else if left--; left > 0 {
					next()
				} else {
					done <- true
				}
			}
		}(all[i], uint32(i+1))
	}
	for range all {
		<-done
	}
	report(name, since(t), float64(2*n*pings))
}

func spawn(name string, n, alive int) {
	me := mailbox()
	t := time.Now()
	for i := 0; i < n; i++ {
		if i >= alive {
			<-me
		}
		child := mailbox()
		go func() { m := <-child; m.from <- Msg{m.val + 1, child} }()
		child <- Msg{uint64(i), me}
	}
	for i := 0; i < alive; i++ {
		<-me
	}
	report(name, since(t), float64(n))
}

func rss() float64 {
	debug.FreeOSMemory()
	b, _ := os.ReadFile("/proc/self/statm")
	pages, _ := strconv.ParseFloat(strings.Fields(string(b))[1], 64)
	return pages * float64(os.Getpagesize())
}

func idle(n int) {
	all, me := make([]Mailbox, n), mailbox()
	for i := range all { // touch the table of handles: it is not charged
		all[i] = me
	}
	before := rss()
	for i := 0; i < n; {
		for j := 0; j < 1000; j++ {
			c := mailbox()
			go func() {
				sum := uint64(0)
				for m := range c {
					sum += m.val
					m.from <- Msg{sum, c}
				}
			}()
			all[i] = c
			i++
		}
		for _, c := range all[i-1000 : i] {
			c <- Msg{1, me}
			<-me
		}
	}
	report("idle", rss()-before, float64(n))
	runtime.KeepAlive(all)
}

func ask(n int) {
	server, done := mailbox(), make(chan []int, 1)
	go pong(server)
	go func() {
		me, ns := mailbox(), make([]int, n)
		for i := range ns {
			t := time.Now()
			server <- Msg{uint64(i), me}
			<-me
			ns[i] = int(time.Since(t))
		}
		done <- ns
	}()
	ns := <-done
	sort.Ints(ns)
	fmt.Printf("ask-p50 %d\nask-p99 %d\n", ns[n/2], ns[n*99/100])
}

func workAlone(n int) {
	t := time.Now()
	for i := 0; i < n; i++ {
		work(uint64(i))
	}
	report("work", since(t), float64(n))
}

func main() {
	capacity, _ = strconv.Atoi(os.Args[1])
	working = strings.HasPrefix(os.Args[2], "work-")
	switch w := os.Args[2]; {
	case w == "pingpong":
		pingpong(w, 1, 5000000)
	case w == "pingpong64":
		pingpong(w, 64, 100000)
	case w == "counting":
		flood(w, 1, 10000000)
	case w == "fanin":
		flood(w, 64, 100000)
	case w == "ring":
		ring(w, 1, 5000000)
	case w == "ring64":
		ring(w, 64, 10000000/64)
	case w == "big" && capacity > 0:
		big(w, 120, 20000)
	case w == "spawn":
		spawn(w, 1000000, 1000000)
	case w == "churn":
		spawn(w, 1000000, 1000)
	case w == "idle":
		idle(1000000)
	case w == "ask":
		ask(1000000)
	case w == "work-pingpong64":
		pingpong(w, 64, 100000/workShare)
	case w == "work-ring64":
		ring(w, 64, 10000000/64/workShare)
	case w == "work-big" && capacity > 0:
		big(w, 120, 20000/workShare)
	case w == "work":
		workAlone(100000)
	default:
		os.Exit(2) // not offered
	}
}
