#include "plan/polish.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "plan/neighbours.h"

namespace weft::plan {
namespace {

std::vector<uint32_t> without(std::vector<uint32_t> fleet, const std::vector<uint32_t>& used) {
  std::erase_if(fleet,
                [&](uint32_t device) { return std::find(used.begin(), used.end(), device) != used.end(); });
  return fleet;
}

// The shortest step that takes so many seconds.
Duration at_least(double seconds) {
  return seconds < 9e9 ? Duration(static_cast<int64_t>(std::ceil(seconds * 1e9)) + 1) : Duration::max();
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
    for (int i = 0; i < workshop_.options().strayed; ++i) {
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
      const double enough = worth(next) * seconds(chosen_.step);
      if (workshop_.busiest(next) >= enough) continue;
      const size_t work = workshop_.work(next);
      if (work > left_) return false;
      left_ -= work;
      auto worked = workshop_.work_out(std::move(next), at_least(enough));
      if (!worked) continue;
      workshop_.fill_if_faster(*worked, at_least(enough));
      if (seconds(worked->step) >= enough) continue;
      take(std::move(*worked));
      return true;
    }
    return false;
  }
  double worth(const Proposal& next) const {
    const SearchOptions& options = workshop_.options();
    if (next.ends.size() > chosen_.proposal.ends.size()) return options.worth_a_stage;
    return next.elsewhere.size() > chosen_.proposal.elsewhere.size() ? options.worth_a_piece
                                                                     : options.worth_a_change;
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
  for (int in_vain = 0; in_vain < workshop.options().strays_in_vain;) {
    Worked strayed = chosen;
    options.idle = without(fleet, chosen.proposal.devices);
    Polish polish(workshop, strayed, options, work_left);
    if (work_left < workshop.work(chosen.proposal)) return;
    ++in_vain;
    if (!polish.stray(rng)) continue;
    polish.run();
    const bool more_stages = strayed.in_flight.size() > chosen.in_flight.size();
    const double worth = more_stages ? workshop.options().worth_a_stage : workshop.options().worth_a_change;
    const double enough = worth * seconds(chosen.step);
    if (seconds(strayed.step) >= enough) continue;
    chosen = std::move(strayed);
    in_vain = 0;
  }
}

}  // namespace weft::plan
