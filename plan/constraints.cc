#include "plan/constraints.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "dag/loss.h"
#include "plan/placement.h"

namespace weft::plan {
namespace {

constexpr size_t kNamesShown = 8;
constexpr size_t kOrdersSearched = 4;
constexpr uint32_t kExactPositions = 128;  // of a longer row the table takes long: only when nothing fits
constexpr std::array kBottleneckFactors = {1.0, 1.1, 1.5};

void add_readers(const dag::Graph& graph, dag::InputRole role, std::set<uint32_t>& found) {
  const auto users = graph.users();
  for (const dag::ValueId input : graph.inputs()) {
    if (graph.input_role(input) != role) continue;
    for (const dag::OpId reader : users[input.index])
      if (graph.op(reader).phase == dag::Phase::Forward) found.insert(reader.index);
  }
}

bool is_leaf(dag::OpKind kind) {
  return kind == dag::OpKind::Input || kind == dag::OpKind::Initializer || kind == dag::OpKind::Constant;
}

void add_named(const dag::Graph& graph, const std::string& name, std::set<uint32_t>& found) {
  std::set<uint32_t> beginning;
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    const dag::Op& op = graph.ops()[i];
    if (op.phase != dag::Phase::Forward || is_leaf(op.kind)) continue;
    if (op.name == name) found.insert(i);
    if (op.name.starts_with(name)) beginning.insert(i);
  }
  if (found.empty()) found = std::move(beginning);
}

std::string first_names(const dag::Graph& graph) {
  std::string names;
  std::set<std::string_view> shown;  // what was one op in the file has one name
  for (const dag::Op& op : graph.ops()) {
    if (op.name.empty() || op.phase != dag::Phase::Forward || is_leaf(op.kind)) continue;
    if (!shown.insert(op.name).second) continue;
    if (shown.size() > kNamesShown) return names + ", ...";
    names += (names.empty() ? "" : ", ") + op.name;
  }
  return names;
}

// What each device must have of a row, in one piece, in the order of the row.
std::vector<PinnedRange> pieces(std::span<const PinnedRange> ranges) {
  std::vector<PinnedRange> merged;
  for (const PinnedRange& range : ranges) {
    const auto at = std::find_if(merged.begin(), merged.end(),
                                 [&](const PinnedRange& other) { return other.device == range.device; });
    if (at == merged.end())
      merged.push_back(range);
    else
      *at = {range.device, std::min(at->first, range.first), std::max(at->last, range.last)};
  }
  std::sort(merged.begin(), merged.end(),
            [](const PinnedRange& a, const PinnedRange& b) { return a.first < b.first; });
  return merged;
}

// The first two that are not one after the other.
const PinnedRange* entangled(const std::vector<PinnedRange>& row) {
  for (size_t i = 1; i < row.size(); ++i)
    if (row[i].first <= row[i - 1].last) return &row[i - 1];
  return nullptr;
}

// By piece, the stage that is to have it: where its middle is, in order.
std::vector<uint32_t> stages_of(const std::vector<PinnedRange>& row, const std::vector<uint32_t>& ends) {
  std::vector<uint32_t> stages;
  for (size_t r = 0; r < row.size(); ++r) {
    const uint32_t middle = row[r].first + (row[r].last - row[r].first) / 2;
    auto stage = static_cast<uint32_t>(std::upper_bound(ends.begin(), ends.end(), middle) - ends.begin());
    stage = std::min(stage, static_cast<uint32_t>(ends.size() - (row.size() - r)));
    stages.push_back(r == 0 ? stage : std::max(stage, stages.back() + 1));
  }
  return stages;
}

// Puts the device there; who had the place gets the device's own, if it had one.
void seat(uint32_t device, uint32_t stage, std::vector<uint32_t>& devices) {
  const auto at = std::find(devices.begin(), devices.end(), device);
  if (at == devices.end())
    devices[stage] = device;
  else
    std::iter_swap(at, devices.begin() + stage);
}

// Moves borders until every piece is in its stage and no stage is empty. Whether that can be.
bool give_way(const std::vector<PinnedRange>& row, const std::vector<uint32_t>& stages,
              std::vector<uint32_t>& ends) {
  const size_t count = ends.size();
  std::vector<uint32_t> least(count), most(count, ends.back());
  for (size_t s = 0; s < count; ++s) least[s] = static_cast<uint32_t>(s + 1);
  least.back() = ends.back();
  for (size_t r = 0; r < row.size(); ++r) {
    least[stages[r]] = std::max(least[stages[r]], row[r].last + 1);
    if (stages[r] > 0) most[stages[r] - 1] = std::min(most[stages[r] - 1], row[r].first);
  }
  for (size_t s = 1; s < count; ++s) least[s] = std::max(least[s], least[s - 1] + 1);
  for (size_t s = count - 1; s-- > 0;) most[s] = std::min(most[s], most[s + 1] > 0 ? most[s + 1] - 1 : 0);
  for (size_t s = 0; s < count; ++s) {
    if (least[s] > most[s]) return false;
    ends[s] = std::clamp(s > 0 ? std::max(ends[s], ends[s - 1] + 1) : ends[s], least[s], most[s]);
  }
  return true;
}

// Who has what of a ring's tail, and so the ring's first stage. Nothing: several would.
struct TailOwner {
  std::optional<uint32_t> device;
  bool is_one = true;
};
TailOwner tail_owner(std::span<const PinnedRange> ranges, uint32_t tail) {
  TailOwner owner;
  for (const PinnedRange& range : ranges) {
    if (range.first < tail) continue;
    owner.is_one = owner.is_one && (!owner.device || *owner.device == range.device);
    owner.device = range.device;
  }
  return owner;
}

// What lies in a ring's tail is its first stage's anyway.
std::vector<PinnedRange> before(std::span<const PinnedRange> ranges, uint32_t tail) {
  std::vector<PinnedRange> found;
  std::copy_if(ranges.begin(), ranges.end(), std::back_inserter(found),
               [&](const PinnedRange& range) { return range.first < tail; });
  return found;
}

std::optional<Proposal> keep_ranges(const Model& model, std::span<const PinnedRange> ranges,
                                    Proposal proposal) {
  if (keeps_ranges(ranges, proposal.devices, proposal.ends)) return proposal;
  const uint32_t tail = proposal.ends.back();
  const TailOwner owner = tail_owner(ranges, tail);
  if (!owner.is_one) return std::nullopt;
  std::vector<PinnedRange> before_tail = before(ranges, tail);
  if (owner.device) before_tail.push_back({*owner.device, 0, model.ring->head_end - 1});
  const std::vector<PinnedRange> row = pieces(before_tail);
  if (row.back().last >= tail || row.size() > proposal.ends.size() || entangled(row)) return std::nullopt;
  std::vector<uint32_t> stages = stages_of(row, proposal.ends);
  if (owner.device) stages.front() = 0;
  for (size_t r = 0; r < row.size(); ++r) seat(row[r].device, stages[r], proposal.devices);
  if (!give_way(row, stages, proposal.ends)) return std::nullopt;
  return proposal;
}

// Proposals of one scope that keep its ranges.
class Keeping {
 public:
  explicit Keeping(const Scope& scope) : scope_(scope), row_(pieces(scope.pinned)) {}

  std::vector<Proposal> run(std::vector<Proposal> proposals, bool searching) {
    for (const PinnedRange& range : row_)
      if (std::find(scope_.devices.begin(), scope_.devices.end(), range.device) == scope_.devices.end())
        return {};
    for (Proposal& proposal : proposals)
      if (auto changed = keep_ranges(*scope_.model, scope_.pinned, std::move(proposal)))
        add(std::move(*changed));
    if (searching) search();
    std::stable_sort(kept_.begin(), kept_.end(),
                     [](const Proposal& a, const Proposal& b) { return a.score < b.score; });
    return std::move(kept_);
  }

 private:
  void add(Proposal proposal) {
    const bool known = std::any_of(kept_.begin(), kept_.end(), [&](const Proposal& other) {
      return other.devices == proposal.devices && other.ends == proposal.ends;
    });
    if (known) return;
    const PartitionProblem problem = problem_of(*scope_.request, *scope_.model, proposal);
    proposal.score = estimate(problem.cost_of(proposal.ends), scope_.request->microbatches);
    bool fits = true;
    for (uint32_t s = 0; s < proposal.ends.size(); ++s)
      fits = fits && problem.fits(s == 0 ? 0 : proposal.ends[s - 1], proposal.ends[s], s);
    any_fits_ = any_fits_ || fits;
    kept_.push_back(std::move(proposal));
  }

  // What was dealt out for other devices may lie badly for these, or not fit.
  void search() {
    std::vector<Proposal> orders;  // by their devices and tails
    const auto add_order = [&](const Proposal& like) {
      const bool known = std::any_of(orders.begin(), orders.end(), [&](const Proposal& other) {
        return other.devices == like.devices && other.ends.back() == like.ends.back();
      });
      if (!known && orders.size() < kOrdersSearched) orders.push_back(like);
    };
    if (row_.size() == scope_.stages && !entangled(row_)) {
      Proposal as_pinned{.devices = {}, .ends = {scope_.model->positions}};
      for (const PinnedRange& range : row_) as_pinned.devices.push_back(range.device);
      add_order(as_pinned);
    }
    for (const Proposal& proposal : kept_) add_order(proposal);
    const bool is_short = scope_.model->positions <= kExactPositions;
    for (const Proposal& order : orders)
      if (is_short || !any_fits_) search(order, is_short);
  }
  void search(const Proposal& like, bool is_short) {
    const auto& order = like.devices;
    PartitionProblem problem = problem_of(*scope_.request, *scope_.model, like);
    const std::vector<PinnedRange> row = pieces(before(scope_.pinned, like.ends.back()));
    for (const PinnedRange& range : row)
      problem.stages[static_cast<size_t>(std::find(order.begin(), order.end(), range.device) - order.begin())]
          .pinned = &range;
    auto partition = least_bottleneck(problem);
    if (!partition) {
      for (auto& stage : problem.stages) stage.in_flight = 1;
      partition = least_bottleneck(problem);
    }
    if (!partition) return;
    add({order, partition->ends, 0});
    if (!is_short) return;
    for (const double factor : kBottleneckFactors)
      if (const auto other = least_sum(problem, partition->cost.bottleneck * factor * (1 + 1e-12)))
        add({order, other->ends, 0});
  }
  const Scope& scope_;
  const std::vector<PinnedRange> row_;
  std::vector<Proposal> kept_;
  bool any_fits_ = false;  // by the estimate, all microbatches in flight
};

std::string names_of(const std::vector<PinnedRange>& row, const ClusterView& cluster) {
  std::string names;
  for (const PinnedRange& range : row)
    names += (names.empty() ? "" : ", ") + cluster.devices()[range.device].name;
  return names;
}

}  // namespace

Result<Pin> resolve_pin(const PinRule& rule, const dag::Graph& graph, const ClusterView& cluster) {
  std::set<uint32_t> found;
  if (rule.ops == "inputs" || rule.ops == "labels") {
    add_readers(graph, rule.ops == "labels" ? dag::InputRole::Loss : dag::InputRole::Model, found);
    if (const auto* loss = graph.find_output(dag::OutputRole::Loss); loss && rule.ops == "labels")
      found.insert(graph.value(loss->value).producer.index);
  } else {
    add_named(graph, rule.ops, found);
  }
  if (found.empty())
    return fail(ErrorCode::InvalidArgument,
                rule.ops == "labels"   ? "the job has no labels and no loss that could be pinned"
                : rule.ops == "inputs" ? "nothing reads the model's inputs"
                                       : "no op of the model is called '" + rule.ops.substr(0, 80) +
                                             "' or begins so; it begins with " + first_names(graph));
  Pin pin{.ops = rule.ops, .of = {}};
  for (const uint32_t op : found) pin.of.push_back({op});
  const auto& devices = cluster.devices();
  const auto at = std::find_if(devices.begin(), devices.end(),
                               [&](const DeviceView& device) { return device.name == rule.peer; });
  if (at == devices.end())
    return fail(ErrorCode::Infeasible, "'" + rule.ops.substr(0, 80) + "' is pinned to '" + rule.peer +
                                           "', which is not among the peers that may be used");
  pin.device = static_cast<uint32_t>(at - devices.begin());
  return pin;
}

bool keeps_pins(std::span<const Pin> pins, const std::vector<uint32_t>& stage_of_op,
                const std::vector<uint32_t>& devices) {
  return std::all_of(pins.begin(), pins.end(), [&](const Pin& pin) {
    return std::all_of(pin.of.begin(), pin.of.end(),
                       [&](dag::OpId op) { return devices[stage_of_op[op.index]] == pin.device; });
  });
}

std::vector<StageFloor> floors_of(std::span<const PinRule> rules, const dag::Graph& other,
                                  const ClusterView& cluster, const std::vector<uint32_t>& devices) {
  std::vector<StageFloor> floors;
  for (const PinRule& rule : rules) {
    const auto pin = resolve_pin(rule, other, cluster);
    if (!pin) continue;
    const auto stage = std::find(devices.begin(), devices.end(), pin->device) - devices.begin();
    for (const dag::OpId op : pin->of) floors.push_back({op, static_cast<uint32_t>(stage)});
  }
  return floors;
}

std::vector<PinnedRange> pinned_ranges(std::span<const Pin> pins, const Model& model) {
  std::vector<PinnedRange> ranges;
  for (const Pin& pin : pins) {
    PinnedRange range{pin.device, model.positions, 0};
    for (const dag::OpId op : pin.of) {
      range.first = std::min(range.first, model.position_of_op[op.index]);
      range.last = std::max(range.last, model.position_of_op[op.index]);
    }
    ranges.push_back(range);
  }
  return ranges;
}

bool keeps_ranges(std::span<const PinnedRange> ranges, const std::vector<uint32_t>& devices,
                  const std::vector<uint32_t>& ends) {
  return std::all_of(ranges.begin(), ranges.end(), [&](const PinnedRange& range) {
    const size_t stage =
        static_cast<size_t>(std::find(devices.begin(), devices.end(), range.device) - devices.begin());
    if (stage == devices.size()) return false;
    if (stage == 0 && range.first >= ends.back()) return true;  // the tail of a ring
    return (stage == 0 ? 0 : ends[stage - 1]) <= range.first && range.last < ends[stage];
  });
}

std::vector<Proposal> within_ranges(const Scope& scope, std::vector<Proposal> proposals, bool searching) {
  return scope.pinned.empty() ? proposals : Keeping(scope).run(std::move(proposals), searching);
}

std::string why_not_kept(const PlanRequest& request, const Model& model) {
  if (request.pins.empty()) return {};
  const auto& devices = request.cluster.devices();
  const std::vector<PinnedRange> ranges = pinned_ranges(request.pins, model);
  std::vector<PinnedRange> row = pieces(ranges);
  // A ring's first stage is in two pieces.
  if (model.ring && tail_owner(ranges, model.ring->tail_max).is_one)
    row = pieces(before(ranges, model.ring->tail_max));
  if (const PinnedRange* one = entangled(row))
    return "between what is pinned to " + devices[one->device].name + " lies what is pinned to " +
           devices[(one + 1)->device].name + ", and a stage is in one piece: pin both to one peer";
  if (request.stages && row.size() > *request.stages)
    return "ops are pinned to " + std::to_string(row.size()) + " peers (" + names_of(row, request.cluster) +
           "), stages: " + std::to_string(*request.stages) + " uses fewer";
  const auto is_other = [&](const PinnedRange& range) {
    return devices[range.device].fingerprint != devices[row.front().device].fingerprint;
  };
  if (request.equal_bits == EqualBits::Require && std::any_of(row.begin(), row.end(), is_other))
    return "ops are pinned to peers of several fingerprints (" + names_of(row, request.cluster) +
           "), equal_bits: require takes one only. With prefer they work together";
  return {};
}

std::string describe_pins(std::span<const Pin> pins, const ClusterView& cluster) {
  std::string text;
  for (const Pin& pin : pins)
    text += (text.empty() ? "" : ", ") + pin.ops.substr(0, 80) + " on " + cluster.devices()[pin.device].name;
  return text;
}

}  // namespace weft::plan
