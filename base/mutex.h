// A mutex, the hold on it and the wait for a change, as std has them, with the attributes by which clang
// checks that what a lock guards is touched under it alone (-Wthread-safety;
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html). Other compilers see the types of std. A class that
// several threads use names for each member the mutex that guards it; what it does not name belongs to one
// thread or never changes.
#pragma once

#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <utility>

#if defined(__clang__)
#define WEFT_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define WEFT_THREAD_ATTRIBUTE(x)
#endif

// A member: read and written under it. A function: its caller holds it, or does not.
#define WEFT_GUARDED_BY(mutex) WEFT_THREAD_ATTRIBUTE(guarded_by(mutex))
#define WEFT_REQUIRES(mutex) WEFT_THREAD_ATTRIBUTE(requires_capability(mutex))
#define WEFT_EXCLUDES(mutex) WEFT_THREAD_ATTRIBUTE(locks_excluded(mutex))

namespace weft {

class WEFT_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() WEFT_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() WEFT_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  bool try_lock() WEFT_THREAD_ATTRIBUTE(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

// Holds it until the end of its scope.
class WEFT_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) WEFT_THREAD_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() WEFT_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Under a lock on the mutex, which is let go of during the wait.
class Condition {
 public:
  void notify_one() { changed_.notify_one(); }
  void notify_all() { changed_.notify_all(); }
  // Until `is_so`, which is called under the lock: a lambda says WEFT_REQUIRES(mutex) itself.
  template <typename Predicate>
  void wait(Mutex& mutex, Predicate is_so) WEFT_REQUIRES(mutex) {
    changed_.wait(mutex, std::move(is_so));
  }
  // False: stopped before that.
  template <typename Predicate>
  bool wait(Mutex& mutex, const std::stop_token& stop, Predicate is_so) WEFT_REQUIRES(mutex) {
    return changed_.wait(mutex, stop, std::move(is_so));
  }

 private:
  std::condition_variable_any changed_;
};

}  // namespace weft
