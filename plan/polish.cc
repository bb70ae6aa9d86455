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
  Polish(Evaluator& evaluator, CandidatePlan& chosen, PolishOptions options, size_t& work_left)
      : evaluator_(evaluator),
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
    evaluator_.raise_in_flight(chosen_);
  }
  // A few changes at once, whatever they cost. False: it cannot be evaluated, or there is no work left.
  bool stray(Rng& rng) {
    Proposal next = chosen_.proposal;
    for (int i = 0; i < evaluator_.options().strayed; ++i) {
      std::vector<Proposal> all =
          neighbours(next, evaluator_.model(), options_.number_may_change, options_.idle);
      if (all.empty()) return false;
      next = std::move(all[rng.below(all.size())]);
      refresh_idle(next.devices);
    }
    const size_t work = evaluator_.work(next);
    if (work > left_) return false;
    left_ -= work;
    auto candidate = evaluator_.evaluate(std::move(next));
    if (!candidate) return false;
    evaluator_.fill_if_faster(*candidate);
    chosen_ = std::move(*candidate);
    return true;
  }

 private:
  // The first neighbour that pays. False: none does, or there is no work left.
  bool change() {
    for (Proposal& next :
         neighbours(chosen_.proposal, evaluator_.model(), options_.number_may_change, options_.idle)) {
      const double enough = worth(next) * seconds(chosen_.step);
      if (evaluator_.busiest(next) >= enough) continue;
      const size_t work = evaluator_.work(next);
      if (work > left_) return false;
      left_ -= work;
      auto candidate = evaluator_.evaluate(std::move(next), at_least(enough));
      if (!candidate) continue;
      evaluator_.fill_if_faster(*candidate, at_least(enough));
      if (seconds(candidate->step) >= enough) continue;
      take(std::move(*candidate));
      return true;
    }
    return false;
  }
  double worth(const Proposal& next) const {
    const SearchOptions& options = evaluator_.options();
    if (next.ends.size() > chosen_.proposal.ends.size()) return options.worth_a_stage;
    return next.moved.size() > chosen_.proposal.moved.size() ? options.worth_a_piece : options.worth_a_change;
  }
  void take(CandidatePlan candidate) {
    refresh_idle(candidate.proposal.devices);
    chosen_ = std::move(candidate);
  }
  void refresh_idle(const std::vector<uint32_t>& used) { options_.idle = without(fleet_, used); }

  Evaluator& evaluator_;
  CandidatePlan& chosen_;
  PolishOptions options_;
  size_t& left_;
  std::vector<uint32_t> fleet_;  // those with a stage, and the idle ones
};

}  // namespace

void polish(Evaluator& evaluator, CandidatePlan& chosen, PolishOptions options, size_t& work_left) {
  Polish(evaluator, chosen, std::move(options), work_left).run();
}

void explore(Evaluator& evaluator, CandidatePlan& chosen, PolishOptions options, size_t& work_left) {
  Rng rng(1, 0);
  std::vector<uint32_t> fleet = options.idle;
  fleet.insert(fleet.end(), chosen.proposal.devices.begin(), chosen.proposal.devices.end());
  std::sort(fleet.begin(), fleet.end());
  for (int in_vain = 0; in_vain < evaluator.options().strays_in_vain;) {
    CandidatePlan strayed = chosen;
    options.idle = without(fleet, chosen.proposal.devices);
    Polish polish(evaluator, strayed, options, work_left);
    if (work_left < evaluator.work(chosen.proposal)) return;
    ++in_vain;
    if (!polish.stray(rng)) continue;
    polish.run();
    const bool more_stages = strayed.in_flight.size() > chosen.in_flight.size();
    const double worth = more_stages ? evaluator.options().worth_a_stage : evaluator.options().worth_a_change;
    const double enough = worth * seconds(chosen.step);
    if (seconds(strayed.step) >= enough) continue;
    chosen = std::move(strayed);
    in_vain = 0;
  }
}

}  // namespace weft::plan
