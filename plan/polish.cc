#include "plan/polish.h"

#include <algorithm>

#include "base/rng.h"
#include "plan/neighbours.h"

namespace weft::plan {
namespace {

constexpr double kWorthAChange = 0.999;  // of the step before, or less
constexpr double kWorthAStage = 0.98;    // where there are more stages
constexpr double kWorthAPiece = 0.99;    // where more positions lie out of the row
constexpr int kStrayed = 3;              // changes at once
constexpr int kStraysInVain = 60;

std::vector<uint32_t> without(std::vector<uint32_t> fleet, const std::vector<uint32_t>& used) {
  std::erase_if(fleet,
                [&](uint32_t device) { return std::find(used.begin(), used.end(), device) != used.end(); });
  return fleet;
}

class Polish {
 public:
  Polish(Workshop& workshop, Worked& chosen, PolishOptions options, size_t& work_left)
      : workshop_(workshop),
        chosen_(chosen),
        options_(std::move(options)),
        left_(work_left),
        fleet_(options_.idle) {
    fleet_.insert(fleet_.end(), chosen.proposal.devices.begin(), chosen.proposal.devices.end());
    std::sort(fleet_.begin(), fleet_.end());
  }

  void run() {
    while (change()) {
    }
    workshop_.raise_in_flight(chosen_);
  }
  // A few changes at once, whatever they cost. False: it cannot be worked out, or there is no work left.
  bool stray(Rng& rng) {
    Proposal next = chosen_.proposal;
    for (int i = 0; i < kStrayed; ++i) {
      std::vector<Proposal> all =
          neighbours(next, workshop_.model(), options_.number_may_change, options_.idle);
      if (all.empty()) return false;
      next = std::move(all[rng.below(all.size())]);
      refresh_idle(next.devices);
    }
    const size_t work = workshop_.work(next);
    if (work > left_) return false;
    left_ -= work;
    auto worked = workshop_.work_out(std::move(next));
    if (!worked) return false;
    workshop_.fill_if_faster(*worked);
    chosen_ = std::move(*worked);
    return true;
  }

 private:
  // The first neighbour that pays. False: none does, or there is no work left.
  bool change() {
    for (Proposal& next :
         neighbours(chosen_.proposal, workshop_.model(), options_.number_may_change, options_.idle)) {
      const double enough = worth(next) * seconds(chosen_.prediction.step);
      if (workshop_.busiest(next) >= enough) continue;
      const size_t work = workshop_.work(next);
      if (work > left_) return false;
      left_ -= work;
      auto worked = workshop_.work_out(std::move(next));
      if (!worked) continue;
      workshop_.fill_if_faster(*worked);
      if (seconds(worked->prediction.step) >= enough) continue;
      take(std::move(*worked));
      return true;
    }
    return false;
  }
  double worth(const Proposal& next) const {
    if (next.ends.size() > chosen_.proposal.ends.size()) return kWorthAStage;
    return next.elsewhere.size() > chosen_.proposal.elsewhere.size() ? kWorthAPiece : kWorthAChange;
  }
  void take(Worked worked) {
    refresh_idle(worked.proposal.devices);
    chosen_ = std::move(worked);
  }
  void refresh_idle(const std::vector<uint32_t>& used) { options_.idle = without(fleet_, used); }

  Workshop& workshop_;
  Worked& chosen_;
  PolishOptions options_;
  size_t& left_;
  std::vector<uint32_t> fleet_;  // those with a stage, and the idle ones
};

}  // namespace

void polish(Workshop& workshop, Worked& chosen, PolishOptions options, size_t& work_left) {
  Polish(workshop, chosen, std::move(options), work_left).run();
}

void explore(Workshop& workshop, Worked& chosen, PolishOptions options, size_t& work_left) {
  Rng rng(1, 0);
  std::vector<uint32_t> fleet = options.idle;
  fleet.insert(fleet.end(), chosen.proposal.devices.begin(), chosen.proposal.devices.end());
  std::sort(fleet.begin(), fleet.end());
  for (int in_vain = 0; in_vain < kStraysInVain;) {
    Worked strayed = chosen;
    options.idle = without(fleet, chosen.proposal.devices);
    Polish polish(workshop, strayed, options, work_left);
    if (work_left < workshop.work(chosen.proposal)) return;
    ++in_vain;
    if (!polish.stray(rng)) continue;
    polish.run();
    const bool more_stages = strayed.in_flight.size() > chosen.in_flight.size();
    const double enough = (more_stages ? kWorthAStage : kWorthAChange) * seconds(chosen.prediction.step);
    if (seconds(strayed.prediction.step) >= enough) continue;
    chosen = std::move(strayed);
    in_vain = 0;
  }
}

}  // namespace weft::plan
