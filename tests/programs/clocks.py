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
    before = time.clock_gettime(clock)
    moved()
    ends.append(1)
    looker.join()
    equal('jumps back', [b - a for a, b in zip(seen, seen[1:])], [])
    # The nodes' clocks differ by 1,000,000 s. All that is less is the time that the moves have taken, on a busy machine some minutes.
    equal('jump forward', time.clock_gettime(clock) - before < 10000, True)


@program
def monotonic():
    """CLOCK_MONOTONIC never goes back, and does not leap"""
    never_back('CLOCK_MONOTONIC')


@program
def boot_time():
    """CLOCK_BOOTTIME likewise"""
    never_back('CLOCK_BOOTTIME')


@program
def sleeper():
    """a sleep to a moment of CLOCK_MONOTONIC, as Python's is"""
    done = []
    threading.Thread(target=lambda: (time.sleep(4), done.append(1)), daemon=True).start()
    moved()
    equal('ended', within(10, lambda: done) and True, True)


@program
def waiter():
    """a wait for a lock with a time-out, and for a condition"""
    done, lock = [], threading.Lock()
    lock.acquire()
    threading.Thread(target=lambda: done.append(lock.acquire(timeout=4)), daemon=True).start()
    moved()
    equal('ended', within(10, lambda: done) and done, [False])


@program
def selector():
    """poll and epoll with a time-out"""
    done = []
    r, _ = os.pipe()
    poll, epoll = select.poll(), select.epoll()
    poll.register(r)
    epoll.register(r, select.EPOLLIN)
    for of, limit in (poll, 4000), (epoll, 4):
        threading.Thread(target=lambda of=of, limit=limit: done.append(of.poll(limit)), daemon=True).start()
    moved()
    equal('ended', within(10, lambda: len(done) == 2) and done, [[], []])


@program
def asyncio_sleep():
    """asyncio's timer"""
    import asyncio
    done = []
    threading.Thread(target=lambda: (asyncio.run(asyncio.sleep(4)), done.append(1)), daemon=True).start()
    moved()
    equal('ended', within(10, lambda: done) and True, True)


@program
def interval_timer():
    """setitimer"""
    heard = []
    signal.signal(signal.SIGALRM, lambda *_: heard.append(1))
    signal.setitimer(signal.ITIMER_REAL, 2, 0.2)
    moved()
    heard.clear()
    equal('heard', within(5, lambda: len(heard) > 2), True)


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


main()
