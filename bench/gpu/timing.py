"""Microseconds of a call: CUDA graph replays over rotating copies of the KV, warmed up, the median of many."""
import statistics
import time

import torch

WARM_UPS, REPLAYS = 5, 25
# A timed replay costs some microseconds of its own, so a graph holds calls for at least this long.
GRAPH_US = 600.0
MOST_CALLS = 400
# What multiplies matrices for long draws so much power that clocks fall within tenths of a second. So it is timed after a
# rest (burst), and once more after as long of the same (soaked).
REST_S, BURST_MS, SOAK_S, SOAKED_REPLAYS = 0.1, 20.0, 0.3, 15


def elapsed_us(work):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def captured(call, sets, calls):
    """A graph of `calls` calls over the copies in turn, and what the first call returned."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for copy in range(min(sets, 2)):
            call(copy)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph, first = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph, stream=stream):
        for i in range(calls):
            out = call(i % sets)
            first = out if i == 0 else first
    return graph, first


def replay_us(call, sets, guess_us):
    """(median us a call, what the graph's first call wrote)."""
    calls = min(MOST_CALLS, max(sets, round(GRAPH_US / guess_us)))
    graph, first = captured(call, sets, calls)
    for _ in range(WARM_UPS):
        graph.replay()
    torch.cuda.synchronize()
    us = statistics.median(elapsed_us(graph.replay) for _ in range(REPLAYS)) / calls
    return us, calls, first


def burst_and_soaked_us(call, sets, guess_us):
    """((burst, soaked) median us a call, calls in the graph, what its first call wrote)."""
    calls = min(MOST_CALLS, max(sets, round(GRAPH_US / guess_us)))
    graph, first = captured(call, sets, calls)
    torch.cuda.synchronize()
    time.sleep(REST_S)
    graph.replay()
    burst = [elapsed_us(graph.replay)]
    while sum(burst) < BURST_MS * 1e3 or len(burst) < 3:
        burst.append(elapsed_us(graph.replay))
    until = time.time() + SOAK_S
    while time.time() < until:
        elapsed_us(graph.replay)
    soaked = [elapsed_us(graph.replay) for _ in range(SOAKED_REPLAYS)]
    return (statistics.median(burst) / calls, statistics.median(soaked) / calls), calls, first
