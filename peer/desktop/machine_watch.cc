#include "peer/desktop/machine_watch.h"

#include <chrono>

#include "peer/desktop/gpu_heat.h"
#include "peer/desktop/system_files.h"

namespace weft::peer {
namespace {

// CLOCK_MONOTONIC, by which logind counts, too.
Duration monotonic() { return std::chrono::steady_clock::now().time_since_epoch(); }

void take_hotter(std::optional<MannersReadings::Heat>& hottest, std::optional<MannersReadings::Heat> other) {
  if (other && (!hottest || other->celsius > hottest->celsius)) hottest = std::move(other);
}

}  // namespace

struct MachineWatch::Eyes {
  explicit Eyes(const Options& options)
      : services(options.open_bus ? DesktopServices(options.open_bus) : DesktopServices()) {
    if (options.rules.celsius_max && options.uses_gpu) gpus = GpuHeat::open();
  }
  DesktopServices services;
  std::unique_ptr<GpuHeat> gpus;
  std::string program;  // as it was seen last
};

MachineWatch::MachineWatch(Options options) : options_(std::move(options)) {
  thread_ = std::thread([this] { run(); });
  MutexLock lock(mutex_);
  wake_.wait(mutex_, [this]() WEFT_REQUIRES(mutex_) { return looked_; });
}

MachineWatch::~MachineWatch() {
  {
    MutexLock lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

MannersReadings MachineWatch::latest() const {
  MutexLock lock(mutex_);
  return latest_;
}

void MachineWatch::let_it_sleep() {
  {
    MutexLock lock(mutex_);
    may_sleep_ = true;
  }
  wake_.notify_all();
}

MannersReadings MachineWatch::look(Eyes& eyes, bool looks_at_programs) const {
  const MannersRules& rules = options_.rules;
  MannersReadings seen;
  if (!rules.on_battery) seen.on_battery = is_on_battery(options_.root);
  if (looks_at_programs) eyes.program = program_that_runs(rules.pause_for, options_.root);
  seen.program = eyes.program;
  if (rules.celsius_max) {
    seen.hottest = hottest_of_processor(options_.root);
    if (eyes.gpus) take_hotter(seen.hottest, eyes.gpus->hottest());
  }
  if (rules.idle) seen.idle = eyes.services.idle(monotonic());
  if (rules.pause_for_games) seen.game = eyes.services.game_runs();
  seen.about_to_sleep = eyes.services.about_to_sleep();
  return seen;
}

// A list of all processes is the dearest look: it is taken every other time.
void MachineWatch::run() {
  Eyes eyes(options_);
  for (uint64_t turn = 0;; ++turn) {
    MannersReadings seen = look(eyes, turn % 2 == 0);
    MutexLock lock(mutex_);
    latest_ = std::move(seen);
    looked_ = true;
    wake_.notify_all();
    wake_.wait_for(mutex_, options_.look_every,
                   [this]() WEFT_REQUIRES(mutex_) { return ends_ || may_sleep_; });
    if (ends_) return;
    if (may_sleep_ && latest_.about_to_sleep) eyes.services.let_it_sleep();
    may_sleep_ = false;
  }
}

}  // namespace weft::peer
