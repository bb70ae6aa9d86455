// A library that is loaded before others (LD_PRELOAD): the time of day is an hour ahead, and clocks that only
// go on are as they are.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
  if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += 3600;
  return result;
}
