#include "plan/neighbours.h"

#include <algorithm>

namespace weft::plan {
namespace {

constexpr size_t kIdleMax = 8;
constexpr size_t kStagesSwapped = 16;  // of more stages only near ones change devices
constexpr uint32_t kCutAnywhere = 16;  // positions; a longer stage is cut in the middle
constexpr size_t kTakenMax = 512;      // pieces that other stages may take; of more none

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
        std::erase_if(next.moved, [&](const auto& other) { return other.stage == stage; });
        for (auto& other : next.moved) other.stage -= other.stage > stage;
      }
  }
  void cut_stages() {
    for (size_t stage = 0; stage < count_; ++stage) {
      const uint32_t size = of_.ends[stage] - begin(stage), middle = begin(stage) + size / 2;
      if (size < 2) continue;
      cut_stage(stage, middle);
      for (uint32_t at = begin(stage) + 1; size <= kCutAnywhere && at < of_.ends[stage]; ++at)
        if (at != middle) cut_stage(stage, at);
    }
  }
  void take_pieces() {
    const uint32_t n = model_.positions;
    if (count_ < 2 || size_t{n} * (n + 1) / 2 * (count_ - 1) > kTakenMax) return;
    const std::vector<uint32_t> stage_of = of_.stages(model_);
    for (uint32_t length = 1; length < n; ++length)
      for (uint32_t first = 0; first + length <= n; ++first)
        for (uint32_t stage = 0; stage < count_; ++stage) give_piece(stage_of, first, first + length, stage);
  }
  std::vector<Proposal> take() { return std::move(found_); }

 private:
  uint32_t begin(size_t stage) const { return stage == 0 ? 0 : of_.ends[stage - 1]; }
  Proposal& add() { return found_.emplace_back(of_); }
  // One of the two pieces goes to a device that has nothing to do.
  void cut_stage(size_t stage, uint32_t border) {
    for (const uint32_t device : idle_)
      for (const size_t behind : {0u, 1u}) {
        Proposal& next = add();
        const auto at = static_cast<ptrdiff_t>(stage);
        next.devices.insert(next.devices.begin() + at + static_cast<ptrdiff_t>(behind), device);
        next.ends.insert(next.ends.begin() + at, border);
        for (auto& other : next.moved) other.stage += other.stage >= stage + behind;
      }
  }
  void give_piece(std::vector<uint32_t> stage_of, uint32_t first, uint32_t end, uint32_t stage) {
    const auto begin = stage_of.begin() + first, behind = stage_of.begin() + end;
    if (std::all_of(begin, behind, [&](uint32_t had) { return had == stage; })) return;
    std::fill(begin, behind, stage);
    std::vector<uint32_t> order, begins;  // stages as they come, and where
    for (uint32_t p = 0; p < stage_of.size(); ++p)
      if (std::find(order.begin(), order.end(), stage_of[p]) == order.end()) {
        order.push_back(stage_of[p]);
        begins.push_back(p);
      }
    if (order.size() < count_) return;
    Proposal next{.devices = {}, .ends = {begins.begin() + 1, begins.end()}};
    for (const uint32_t one : order) next.devices.push_back(of_.devices[one]);
    next.ends.push_back(tail_of(stage_of, begins));
    const std::vector<uint32_t> row = next.stages(model_);
    for (uint32_t p = 0; p < stage_of.size(); ++p) {
      const auto at = std::find(order.begin(), order.end(), stage_of[p]);
      const auto has = static_cast<uint32_t>(at - order.begin());
      if (has != row[p]) next.moved.push_back({p, has});
    }
    found_.push_back(std::move(next));
  }
  // Where the last stage ends: before what the first one has of the row's end, where that is the model's
  // ring.
  uint32_t tail_of(const std::vector<uint32_t>& stage_of, const std::vector<uint32_t>& begins) const {
    const uint32_t n = model_.positions;
    uint32_t tail = n;
    while (tail > 0 && stage_of[tail - 1] == stage_of[0]) --tail;
    const bool is_ring = model_.ring && count_ > 1 && tail < n && tail <= model_.ring->tail_max &&
                         begins[1] >= model_.ring->head_end && tail > begins.back();
    return is_ring ? tail : n;
  }

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
    all.cut_stages();
  }
  all.take_pieces();
  return all.take();
}

}  // namespace weft::plan
