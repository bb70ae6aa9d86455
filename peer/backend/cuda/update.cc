#include "peer/backend/cuda/update.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "dag/slot_codes.h"
#include "peer/backend/cuda/kernel.h"
#include "peer/backend/cuda/kernels/update.h"

namespace weft::peer::cuda {
namespace {

int64_t chunks_of(int64_t count) { return (count + kUpdateChunk - 1) / kUpdateChunk; }

Grid grid_of_chunks(int64_t chunks) { return {static_cast<uint32_t>(chunks), kUpdateThreads, 1}; }

template <typename T>
Array<T> array_of(View view, int64_t count) {
  return {reinterpret_cast<T*>(address(view)), count};
}

// ---- the optimizers' rules ----

SgdArgs sgd_args(const dag::OptimizerSpec& optimizer, const dag::UpdateStep& step) {
  return {.learning_rate = static_cast<float>(step.learning_rate),
          .weight_decay = static_cast<float>(optimizer.weight_decay),
          .momentum = static_cast<float>(optimizer.momentum),
          .keep = static_cast<float>(1 - optimizer.dampening),
          .gradient_scale = static_cast<float>(step.gradient_scale),
          .first = step.step == 1,
          .nesterov = optimizer.nesterov};
}

AdamArgs adam_args(const dag::OptimizerSpec& optimizer, const dag::UpdateStep& step) {
  const bool decoupled = optimizer.type == dag::OptimizerType::AdamW;
  const double t = static_cast<double>(step.step);
  return {
      .decay_factor = decoupled ? static_cast<float>(1 - step.learning_rate * optimizer.weight_decay) : 1.0f,
      .weight_decay = decoupled ? 0.0f : static_cast<float>(optimizer.weight_decay),
      .beta1 = static_cast<float>(optimizer.beta1),
      .one_minus_beta1 = static_cast<float>(1 - optimizer.beta1),
      .beta2 = static_cast<float>(optimizer.beta2),
      .one_minus_beta2 = static_cast<float>(1 - optimizer.beta2),
      .step_size = static_cast<float>(step.learning_rate / (1 - std::pow(optimizer.beta1, t))),
      .inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(optimizer.beta2, t))),
      .epsilon = static_cast<float>(optimizer.epsilon),
      .gradient_scale = static_cast<float>(step.gradient_scale)};
}

template <typename Slot>
Array<Slot> slot_of(const ParameterUpdate& update, size_t index, int64_t count) {
  if (index >= update.slots.size()) return {};
  return array_of<Slot>(update.slots[index], count);
}
void put(const ParameterUpdate& update, UpdatedTensor& into) {
  const int64_t count = update.spec.element_count();
  into = {array_of<float>(update.parameter, count), array_of<const float>(update.gradient, count),
          slot_of<float>(update, 0, count), slot_of<float>(update, 1, count)};
}
void put(const ParameterUpdate& update, CodedTensor& into) {
  const int64_t count = update.spec.element_count(), bytes = dag::coded_slot_bytes(count);
  into = {array_of<float>(update.parameter, count), array_of<const float>(update.gradient, count),
          slot_of<uint8_t>(update, 0, bytes), slot_of<uint8_t>(update, 1, bytes)};
}

// How many of the sources one launch takes, at least one. Launches use the same scratch, one after another:
// it has a bound, for models of any size.
size_t squares_of_one_launch(std::span<const TensorView> sources) {
  constexpr int64_t kChunksMax = 120 << 10;
  size_t count = 0;
  for (int64_t chunks = 0; count < std::min<size_t>(kSquaresTensors, sources.size()); ++count) {
    chunks += chunks_of(sources[count].spec.element_count());
    if (count > 0 && chunks > kChunksMax) break;
  }
  return count;
}

// Of the parameters of one group: fills tables and launches each that is full, and the last.
template <typename Parameters>
Status update_all(Device& device, const EntryOf<Parameters>& kernel, Parameters p,
                  std::span<const ParameterUpdate> parameters, std::optional<size_t> group) {
  auto& table = p.table;
  const auto flush = [&]() -> Status {
    if (table.count == 0) return {};
    WEFT_TRY_STATUS(launch(device, kernel, grid_of_chunks(table.starts[table.count]), p));
    table.count = 0;
    return {};
  };
  for (const ParameterUpdate& update : parameters) {
    const int64_t chunks = chunks_of(update.spec.element_count());
    if (chunks == 0 || update.group != group) continue;
    put(update, table.tensors[table.count]);
    table.starts[table.count + 1] = table.starts[table.count] + chunks;
    if (++table.count == kUpdateTensors) WEFT_TRY_STATUS(flush());
  }
  return flush();
}

}  // namespace

Status submit_accumulate(Device& device, Array<const float> from, Array<float> into) {
  WEFT_CHECK(from.count == into.count);
  if (from.count == 0) return {};
  return launch(device, k_accumulate, grid_of_chunks(chunks_of(from.count)), {from, into});
}

int64_t sums_scratch_bytes(std::span<const TensorView> sources) {
  int64_t most = 0;
  for (auto left = sources; !left.empty();) {
    const auto part = left.first(squares_of_one_launch(left));
    left = left.subspan(part.size());
    int64_t chunks = 0;
    for (const TensorView& source : part) chunks += chunks_of(source.spec.element_count());
    most = std::max(most, chunks);
  }
  return most * static_cast<int64_t>(sizeof(double));
}

Status submit_sums_of_squares(Device& device, std::span<const TensorView> sources, Array<double> sums,
                              std::byte* scratch) {
  WEFT_CHECK(sums.count == static_cast<int64_t>(sources.size()));
  const Array<double> partials{reinterpret_cast<double*>(scratch),
                               sums_scratch_bytes(sources) / static_cast<int64_t>(sizeof(double))};
  for (size_t first = 0; first < sources.size();) {
    const auto part = sources.subspan(first, squares_of_one_launch(sources.subspan(first)));
    Squares squares{{}, {0}, static_cast<int32_t>(part.size()), partials};
    for (size_t i = 0; i < part.size(); ++i) {
      const int64_t count = part[i].spec.element_count();
      squares.sources[i] = array_of<const float>(part[i].view, count);
      squares.starts[i + 1] = squares.starts[i] + chunks_of(count);
    }
    const int64_t chunks = squares.starts[part.size()];
    if (chunks > 0) WEFT_TRY_STATUS(launch(device, k_squares, grid_of_chunks(chunks), squares));
    SquaresTotals totals{{}, {partials.data, partials.count}, sums, static_cast<int64_t>(first)};
    std::copy(std::begin(squares.starts), std::end(squares.starts), std::begin(totals.starts));
    WEFT_TRY_STATUS(
        launch(device, k_squares_totals, grid_of_chunks(static_cast<int64_t>(part.size())), totals));
    first += part.size();
  }
  return {};
}

Status submit_update(Device& device, const dag::OptimizerSpec& optimizer, const dag::UpdateStep& step,
                     std::span<const ParameterUpdate> parameters) {
  static_assert(kSlotBlock == dag::kSlotBlock && kUpdateChunk % kSlotBlock == 0);
  const size_t slots = dag::optimizer_slots(optimizer).size();
  for (const ParameterUpdate& update : parameters) WEFT_CHECK(update.slots.size() == slots);
  const bool is_sgd = optimizer.type == dag::OptimizerType::Sgd;
  const bool is_coded = optimizer.slots == dag::SlotType::Int8 && slots > 0;
  const uint32_t draw = dag::slot_draw(step.step);
  for (size_t i = 0; i <= optimizer.groups.size(); ++i) {
    const std::optional<size_t> group = i == 0 ? std::nullopt : std::optional(i - 1);
    const auto of = dag::update_of_group(optimizer, step, group);
    const auto all = [&](const auto& kernel, auto p) {
      return update_all(device, kernel, p, parameters, group);
    };
    if (is_sgd) {
      const SgdArgs args = sgd_args(of.optimizer, of.step);
      WEFT_TRY_STATUS(is_coded ? all(k_coded_sgd, CodedSgd{{}, args, draw}) : all(k_sgd, Sgd{{}, args}));
    } else {
      const AdamArgs args = adam_args(of.optimizer, of.step);
      WEFT_TRY_STATUS(is_coded ? all(k_coded_adam, CodedAdam{{}, args, draw}) : all(k_adam, Adam{{}, args}));
    }
  }
  return {};
}

}  // namespace weft::peer::cuda
