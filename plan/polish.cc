#include "plan/polish.h"

#include <algorithm>

#include "plan/neighbours.h"

namespace weft::plan {
namespace {

constexpr double kWorthAChange = 0.999;  // of the step before, or less
constexpr double kWorthAStage = 0.98;    // where there are more stages
constexpr double kWorthAPiece = 0.99;    // where more positions lie out of the row

class Polish {
 public:
  Polish(Workshop& workshop, Worked& chosen, PolishOptions options, size_t& work_left)
      : workshop_(workshop), chosen_(chosen), options_(std::move(options)), left_(work_left) {}

  void run() {
    while (change()) {
    }
    workshop_.raise_in_flight(chosen_);
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
      if (worked->in_flight.size() >= chosen_.in_flight.size()) workshop_.keep_in_flight(chosen_, *worked);
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
    const auto& before = chosen_.proposal.devices;
    const auto& after = worked.proposal.devices;
    const auto is_in = [](const std::vector<uint32_t>& devices) {
      return [&](uint32_t device) {
        return std::find(devices.begin(), devices.end(), device) != devices.end();
      };
    };
    std::erase_if(options_.idle, is_in(after));
    std::copy_if(before.begin(), before.end(), std::back_inserter(options_.idle),
                 [&](uint32_t device) { return !is_in(after)(device); });
    std::sort(options_.idle.begin(), options_.idle.end());
    chosen_ = std::move(worked);
  }

  Workshop& workshop_;
  Worked& chosen_;
  PolishOptions options_;
  size_t& left_;
};

}  // namespace

void polish(Workshop& workshop, Worked& chosen, PolishOptions options, size_t& work_left) {
  Polish(workshop, chosen, std::move(options), work_left).run();
}

}  // namespace weft::plan
