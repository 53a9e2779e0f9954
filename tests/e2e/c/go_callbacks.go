// CUDA calls from goroutines on several threads, some of them inside a callback from a CUDA call: the callback runs on
// the goroutine's own stack, and what it calls on the thread's. Prints how many calls were made.
package main

/*
#include <stddef.h>
int cudaMalloc(void **pointer, size_t size);
int cudaFree(void *pointer);
int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data);
extern void calledBack(void *);
static int callOut(void) { return cudaLaunchHostFunc(0, calledBack, 0); }
static int allocateAndFree(void) {
	void *block = 0;
	return cudaMalloc(&block, 4096) | cudaFree(block);
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"
)

var made, failed int64

func allocateAndFree() {
	atomic.AddInt64(&made, 2)
	if C.allocateAndFree() != 0 {
		atomic.StoreInt64(&failed, 1)
	}
}

//export calledBack
func calledBack(_ unsafe.Pointer) {
	allocateAndFree()
	runtime.Gosched()
	grow(200)
}

// Makes the goroutine's stack grow, so that it is moved.
func grow(levels int) int {
	var frame [256]byte
	frame[levels%256] = byte(levels)
	if levels == 0 {
		allocateAndFree()
		return int(frame[0])
	}
	return grow(levels-1) + int(frame[levels%256])
}

func main() {
	rounds := 100
	if len(os.Args) > 1 {
		rounds, _ = strconv.Atoi(os.Args[1])
	}
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for j := 0; j < rounds; j++ {
				atomic.AddInt64(&made, 1)
				if C.callOut() != 0 {
					atomic.StoreInt64(&failed, 1)
				}
				allocateAndFree()
				runtime.Gosched()
			}
		}()
	}
	all.Wait()
	fmt.Printf("{\"made\":%d}\n", made)
	os.Exit(int(failed))
}
