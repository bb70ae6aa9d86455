#include "plan/neighbours.h"

#include <algorithm>

namespace weft::plan {
namespace {

constexpr size_t kIdleMax = 8;
constexpr size_t kStagesSwapped = 16;  // of more stages only near ones change devices

class Neighbours {
 public:
  Neighbours(const Proposal& of, const Model& model, std::span<const uint32_t> idle)
      : of_(of), model_(model), idle_(idle.first(std::min(idle.size(), kIdleMax))), count_(of.ends.size()) {}

  void shift_borders() {
    const size_t borders = of_.is_ring(model_) ? count_ : count_ - 1;
    for (size_t border = 0; border < borders; ++border)
      for (const int by : {-1, 1, -2, 2}) {
        const int64_t at = int64_t{of_.ends[border]} + by;
        const uint32_t next_end = border + 1 < count_ ? of_.ends[border + 1] : model_.positions;
        if (at <= int64_t{begin(border)} || at >= int64_t{next_end}) continue;
        Proposal& next = add();
        next.ends[border] = static_cast<uint32_t>(at);
      }
  }
  void exchange_devices() {
    for (size_t a = 0; a < count_; ++a) {
      const size_t last = count_ > kStagesSwapped ? std::min(count_, a + 3) : count_;
      for (size_t b = a + 1; b < last; ++b) {
        Proposal& next = add();
        std::swap(next.devices[a], next.devices[b]);
      }
      for (const uint32_t device : idle_) add().devices[a] = device;
    }
  }
  // Its positions go to the stage before, or behind.
  void drop_stages() {
    for (size_t stage = 0; stage < count_ && count_ > 1; ++stage)
      for (const bool to_front : {true, false}) {
        if (to_front ? stage == 0 : stage + 1 == count_) continue;
        Proposal& next = add();
        const auto at = static_cast<ptrdiff_t>(stage);
        next.devices.erase(next.devices.begin() + at);
        next.ends.erase(next.ends.begin() + at - (to_front ? 1 : 0));
      }
  }
  void halve_stages() {
    for (size_t stage = 0; stage < count_; ++stage) {
      const uint32_t middle = begin(stage) + (of_.ends[stage] - begin(stage)) / 2;
      if (middle == begin(stage)) continue;
      for (const uint32_t device : idle_)
        for (const ptrdiff_t behind : {0, 1}) {
          Proposal& next = add();
          const auto at = static_cast<ptrdiff_t>(stage);
          next.devices.insert(next.devices.begin() + at + behind, device);
          next.ends.insert(next.ends.begin() + at, middle);
        }
    }
  }
  std::vector<Proposal> take() { return std::move(found_); }

 private:
  uint32_t begin(size_t stage) const { return stage == 0 ? 0 : of_.ends[stage - 1]; }
  Proposal& add() { return found_.emplace_back(of_); }

  const Proposal& of_;
  const Model& model_;
  std::span<const uint32_t> idle_;
  size_t count_;
  std::vector<Proposal> found_;
};

}  // namespace

std::vector<Proposal> neighbours(const Proposal& of, const Model& model, bool number_may_change,
                                 std::span<const uint32_t> idle) {
  Neighbours all(of, model, idle);
  all.shift_borders();
  all.exchange_devices();
  if (number_may_change) {
    all.drop_stages();
    all.halve_stages();
  }
  return all.take();
}

}  // namespace weft::plan
