// A thread that looks at the machine for a peer with manners, as often as its rules need, and holds what it
// saw last. It looks at nothing that no rule is about.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <thread>

#include "base/mutex.h"
#include "peer/desktop/desktop_services.h"
#include "peer/manners/manners.h"

namespace weft::peer {

class MachineWatch {
 public:
  static constexpr Duration kLookEvery = std::chrono::seconds(1);

  struct Options {
    MannersRules rules;
    bool uses_gpu = false;             // its heat counts, too
    std::filesystem::path root = "/";  // of /sys and /proc
    DesktopServices::Open open_bus{};  // empty: the usual buses
    Duration look_every = kLookEvery;
  };
  // Has looked once when it returns.
  explicit MachineWatch(Options options);
  ~MachineWatch();
  MachineWatch(const MachineWatch&) = delete;
  MachineWatch& operator=(const MachineWatch&) = delete;

  MannersReadings latest() const;
  // Nothing is left to do before the machine sleeps. Holds until it is about to sleep the next time.
  void let_it_sleep();

 private:
  struct Eyes;  // the thread's
  void run();
  MannersReadings look(Eyes& eyes, bool looks_at_programs) const;

  const Options options_;
  mutable Mutex mutex_;
  std::condition_variable_any wake_;
  MannersReadings latest_ WEFT_GUARDED_BY(mutex_);
  bool looked_ WEFT_GUARDED_BY(mutex_) = false;
  bool ends_ WEFT_GUARDED_BY(mutex_) = false;
  bool may_sleep_ WEFT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace weft::peer
