// What the broker is told about a stage, kept until it says that it will not ask for it again.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "peer/machine/stage.h"

namespace weft::peer {

class ReportLog {
 public:
  static constexpr uint64_t kNeverSettled = UINT64_MAX;  // while the stage is held
  struct Kept {
    uint64_t sequence = 0;  // of the command that it answers, or kNeverSettled
    Task task{};            // of a CheckpointReport
    proto::Message message;
  };

  void add(uint64_t sequence, proto::Message message, const Task& task) {
    kept_.push_back({sequence, task, std::move(message)});
  }
  // StepReports up to `committed`, others on commands up to `settled` are not asked for again.
  void trim(uint64_t committed, uint64_t settled) {
    std::erase_if(kept_, [&](const Kept& kept) {
      if (const auto* step = std::get_if<proto::StepReport>(&kept.message)) return step->step <= committed;
      return kept.sequence <= settled;
    });
  }
  // Those that are so, in order; they are kept no longer.
  std::vector<Kept> take_if(const std::function<bool(const Kept&)>& is_so) {
    std::vector<Kept> taken;
    std::deque<Kept> others;
    for (Kept& kept : kept_)
      if (is_so(kept))
        taken.push_back(std::move(kept));
      else
        others.push_back(std::move(kept));
    kept_ = std::move(others);
    return taken;
  }
  const std::deque<Kept>& kept() const { return kept_; }
  size_t size() const { return kept_.size(); }

 private:
  std::deque<Kept> kept_;
};

}  // namespace weft::peer
