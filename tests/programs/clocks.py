"""Clocks and timers."""
import ctypes
import os
import select
import signal
import struct
import threading
import time

from moved import call, equal, libc, main, moved, place, program, within


def never_back(name):
    clock = getattr(time, name)
    ends, seen = [], [time.clock_gettime(clock)]

    def look():
        while not ends:
            now = time.clock_gettime(clock)
            seen.append(now) if now < seen[-1] else seen.__setitem__(-1, now)
            libc.usleep(1000)
    looker = threading.Thread(target=look)
    looker.start()
    before = time.clock_gettime(clock), time.time()
    moved()
    ends.append(1)
    looker.join()
    equal('jumps back', [b - a for a, b in zip(seen, seen[1:])], [])
    # The nodes differ by 1,000,000 s in this clock, and have the time of day in common.
    equal('jump forward', max(0, int(time.clock_gettime(clock) - before[0] - (time.time() - before[1]))), 0)


@program
def monotonic():
    """CLOCK_MONOTONIC never goes back, and does not leap"""
    never_back('CLOCK_MONOTONIC')


@program
def boot_time():
    """CLOCK_BOOTTIME likewise"""
    never_back('CLOCK_BOOTTIME')


def ends_in_time(waits, results):
    """Does each of these in a thread; each takes 4 seconds, and must neither end too early nor be held up."""
    done, begun = {}, time.monotonic()

    def wait(number, act):
        result = act()
        done[number] = result, time.monotonic() - begun
    for number, act in enumerate(waits):
        threading.Thread(target=wait, args=(number, act), daemon=True).start()
    moved()
    equal('ended', within(10, lambda: len(done) == len(waits)) and [done[number][0] for number in sorted(done)], results)
    equal('too early', [after for _, after in done.values() if after < 3.9], [])


@program
def sleeper():
    """a sleep to a moment of CLOCK_MONOTONIC, as Python's is"""
    ends_in_time([lambda: time.sleep(4)], [None])


@program
def waiter():
    """a wait for a lock with a time-out, and for a condition"""
    lock, condition = threading.Lock(), threading.Condition()
    lock.acquire()

    def wait():
        with condition:
            return condition.wait(4)
    ends_in_time([lambda: lock.acquire(timeout=4), wait], [False, False])


@program
def selector():
    """poll, epoll and select with a time-out"""
    r, _ = os.pipe()
    poll, epoll = select.poll(), select.epoll()
    poll.register(r)
    epoll.register(r, select.EPOLLIN)
    ends_in_time([lambda: poll.poll(4000), lambda: epoll.poll(4), lambda: select.select([r], [], [], 4)], [[], [], ([], [], [])])


@program
def asyncio_sleep():
    """asyncio's timer"""
    import asyncio
    ends_in_time([lambda: asyncio.run(asyncio.sleep(4))], [None])


@program
def interval_timer():
    """setitimer"""
    heard, begun = [], time.monotonic()
    signal.signal(signal.SIGALRM, lambda *_: heard.append(time.monotonic() - begun))
    signal.setitimer(signal.ITIMER_REAL, 4, 0.2)
    moved()
    equal('heard', within(10, lambda: len(heard) > 2), True)
    equal('too early', [after for number, after in enumerate(heard) if after < 3.9 + 0.2 * number], [])


@program
def virtual_timers():
    """timers of processor time"""
    heard = []
    signal.signal(signal.SIGVTALRM, lambda *_: heard.append('virtual'))
    signal.signal(signal.SIGPROF, lambda *_: heard.append('profile'))
    signal.setitimer(signal.ITIMER_VIRTUAL, 1000, 7)
    signal.setitimer(signal.ITIMER_PROF, 2000, 8)
    moved()
    left = [signal.getitimer(which) for which in (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)]
    equal('timers', [(abs(995 - left[0][0]) < 6, left[0][1]), (abs(1995 - left[1][0]) < 6, left[1][1])], [(True, 7.0), (True, 8.0)])


def posix_timer(clock):
    heard = []
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    timer = ctypes.c_void_p()
    event = ctypes.create_string_buffer(64)
    struct.pack_into('qii', event, 0, 0, signal.SIGUSR1, 0)
    call('timer_create', clock, event, ctypes.byref(timer))
    call('timer_settime', timer, 0, struct.pack('llll', 1, 0, 2, 0), None)
    moved()
    heard.clear()
    equal('heard', within(6, lambda: len(heard) > 1), True)


@program
def posix_timer_monotonic():
    """a POSIX timer of CLOCK_MONOTONIC"""
    posix_timer(time.CLOCK_MONOTONIC)


@program
def posix_timer_real():
    """a POSIX timer of CLOCK_REALTIME"""
    posix_timer(time.CLOCK_REALTIME)


def timerfd(clock, absolute):
    fd = call('timerfd_create', clock, os.O_NONBLOCK)
    now = time.clock_gettime(clock) if absolute else 0
    call('timerfd_settime', fd, int(absolute), struct.pack('llll', 1, 0, int(now) + 3, 0), None)
    moved()
    ready = lambda: select.select([fd], [], [], 0)[0]
    equal('ticks', within(8, ready) and struct.unpack('Q', os.read(fd, 8))[0] > 0, True)
    equal('ticks again', within(4, ready) and True, True)


@program
def timerfd_relative():
    """a timerfd of CLOCK_MONOTONIC"""
    timerfd(time.CLOCK_MONOTONIC, False)


@program
def timerfd_absolute():
    """a timerfd for a moment of CLOCK_MONOTONIC"""
    timerfd(time.CLOCK_MONOTONIC, True)


@program
def timerfd_boot():
    """a timerfd of CLOCK_BOOTTIME"""
    timerfd(time.CLOCK_BOOTTIME, False)


@program
def timerfd_real():
    """a timerfd for a moment of CLOCK_REALTIME"""
    timerfd(time.CLOCK_REALTIME, True)


@program
def timerfd_ticks():
    """a timerfd with ticks that nobody has read"""
    fd = call('timerfd_create', time.CLOCK_MONOTONIC, os.O_NONBLOCK)
    call('timerfd_settime', fd, 0, struct.pack('llll', 0, 0, 0, 1000000), None)
    within(2, lambda: select.select([fd], [], [], 0)[0])
    moved()
    equal('ticks', struct.unpack('Q', os.read(fd, 8))[0], 1)


@program
def timerfd_unread():
    """a timerfd that has expired unread, and expires every second"""
    fd = call('timerfd_create', time.CLOCK_MONOTONIC, os.O_NONBLOCK)
    call('timerfd_settime', fd, 0, struct.pack('llll', 1, 0, 0, 1000000), None)
    within(2, lambda: select.select([fd], [], [], 0)[0])
    moved()
    ready = lambda: select.select([fd], [], [], 0)[0]
    equal('ticks', struct.unpack('Q', os.read(fd, 8))[0] > 0, True)
    equal('ticks again', within(4, ready) and True, True)


@program
def timer_slack():
    """timer slack"""
    call('prctl', 29, 1234567)
    moved()
    equal('slack', call('prctl', 30), 1234567)


@program
def monotonic_raw():
    """CLOCK_MONOTONIC_RAW likewise"""
    never_back('CLOCK_MONOTONIC_RAW')


@program
def timerfd_cancelled():
    """a timerfd that ends when the clock is set (TFD_TIMER_CANCEL_ON_SET)"""
    fd = call('timerfd_create', time.CLOCK_REALTIME, os.O_NONBLOCK)
    call('timerfd_settime', fd, 3, struct.pack('llll', 0, 0, int(time.time()) + 1000, 0), None)
    flags = lambda: [line for line in open(f'/proc/self/fdinfo/{fd}') if line.startswith('settime')]
    before = flags()
    moved()
    equal('flags', flags(), before)


@program
def posix_timer_thread():
    """a POSIX timer that signals a thread, with a value, and one of processor time"""
    timers = ctypes.c_void_p(), ctypes.c_void_p()
    ends, event = threading.Event(), ctypes.create_string_buffer(64)
    thread = threading.Thread(target=ends.wait)
    thread.start()
    for clock, timer in zip((time.CLOCK_MONOTONIC, time.CLOCK_PROCESS_CPUTIME_ID), timers):
        struct.pack_into('qiii', event, 0, 77, signal.SIGUSR1, 4, thread.native_id)
        call('timer_create', clock, event, ctypes.byref(timer))
        call('timer_settime', timer, 0, struct.pack('llll', 1000, 0, 2000, 0), None)
    lines = lambda: open('/proc/self/timers').read()
    before = lines()
    moved()
    equal('timers', lines(), before)
    for timer in timers:
        left = ctypes.create_string_buffer(32)
        call('timer_gettime', timer, left)
        interval, _, value, _ = struct.unpack('llll', left.raw)
        equal('left', (interval, 1900 < value <= 2000), (1000, True))
    ends.set()


main()
