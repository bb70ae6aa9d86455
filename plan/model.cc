#include "plan/model.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <string_view>
#include <unordered_map>

#include "plan/traffic.h"

namespace weft::plan {

using dag::Graph;
using dag::Op;
using dag::OpId;
using dag::OpKind;
using dag::Phase;
using dag::ValueId;

namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

class Union {
 public:
  explicit Union(uint32_t count) : parent_(count) { std::iota(parent_.begin(), parent_.end(), 0u); }
  uint32_t find(uint32_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(uint32_t a, uint32_t b) {
    a = find(a), b = find(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<uint32_t> parent_;
};

// Strongly connected components of a graph of `count` nodes (Tarjan, without recursion: models are deep).
std::vector<uint32_t> components(const std::vector<std::vector<uint32_t>>& after) {
  const auto count = static_cast<uint32_t>(after.size());
  std::vector<uint32_t> index(count, kNone), low(count, 0), component(count, kNone), stack;
  struct Frame {
    uint32_t node;
    size_t edge;
  };
  std::vector<Frame> frames;
  uint32_t next_index = 0, next_component = 0;
  for (uint32_t root = 0; root < count; ++root) {
    if (index[root] != kNone) continue;
    frames.push_back({root, 0});
    while (!frames.empty()) {
      const uint32_t node = frames.back().node;
      if (frames.back().edge == 0 && index[node] == kNone) {
        index[node] = low[node] = next_index++;
        stack.push_back(node);
      }
      if (frames.back().edge < after[node].size()) {
        const uint32_t to = after[node][frames.back().edge++];
        if (index[to] == kNone)
          frames.push_back({to, 0});
        else if (component[to] == kNone)
          low[node] = std::min(low[node], index[to]);
        continue;
      }
      if (low[node] == index[node]) {
        for (uint32_t member = kNone; member != node; stack.pop_back()) {
          member = stack.back();
          component[member] = next_component;
        }
        ++next_component;
      }
      frames.pop_back();
      if (!frames.empty()) low[frames.back().node] = std::min(low[frames.back().node], low[node]);
    }
  }
  return component;
}

class PositionFinder {
 public:
  PositionFinder(const Graph& graph, std::span<const Model::Class> classes)
      : graph_(graph),
        classes_(classes),
        count_(static_cast<uint32_t>(graph.ops().size())),
        units_(count_),
        users_(graph.users()) {}

  // By op; leaves that nothing ties down stand where they are first read.
  std::vector<uint32_t> run(uint32_t& positions) {
    join_units();
    tie_leaves_to_readers();
    const std::vector<uint32_t> node_of_op = merge_cycles();
    std::vector<uint32_t> position_of_op = sort(node_of_op, positions);
    for (uint32_t i = 0; i < count_; ++i)
      if (node_of_op[i] == kNone) position_of_op[i] = first_reader_position(i, position_of_op);
    return position_of_op;
  }

 private:
  bool is_leaf(uint32_t op) const { return graph_.ops()[op].inputs.empty(); }

  // Of a forward op on single numbers, who makes the first: by itself it is no work for a device, and a cut
  // before it would cost a round trip for what a loss is divided by.
  std::optional<uint32_t> maker_of_number(const Op& op) const {
    const auto is_number = [&](dag::ValueId value) {
      return value.valid() && graph_.spec(value).element_count() == 1;
    };
    if (op.phase != Phase::Forward || op.inputs.empty() || !is_number(op.inputs[0]) ||
        !std::all_of(op.outputs.begin(), op.outputs.end(), is_number))
      return std::nullopt;
    const uint32_t maker = graph_.value(op.inputs[0]).producer.index;
    return is_leaf(maker) ? std::nullopt : std::optional(maker);
  }

  void join_units() {
    for (uint32_t i = 0; i < count_; ++i) {
      const Op& op = graph_.ops()[i];
      if (op.phase == Phase::Backward && op.origin.valid()) units_.join(i, op.origin.index);
      if (const auto maker = maker_of_number(op)) units_.join(i, *maker);
    }
    for (const Model::Class& of : classes_) {
      const auto ops = of.lowered->graph.ops();
      for (uint32_t i = 1; i < ops.size(); ++i)
        if (ops[i].group.valid() && ops[i - 1].group == ops[i].group)
          units_.join(of.lowered->source_op[i].index, of.lowered->source_op[i - 1].index);
    }
    std::unordered_map<std::string_view, uint32_t> op_of_initializer;
    for (const auto& initializer : graph_.initializers())
      op_of_initializer[initializer.name] = graph_.value(initializer.value).producer.index;
    for (const auto& output : graph_.outputs())
      if (output.role == dag::OutputRole::Gradient || output.role == dag::OutputRole::StateUpdate)
        units_.join(op_of_initializer.at(output.name), graph_.value(output.value).producer.index);
    // A leaf that belongs to nobody may lie anywhere.
    work_of_unit_.assign(count_, false);
    forward_of_unit_.assign(count_, false);
    for (uint32_t i = 0; i < count_; ++i) {
      if (is_leaf(i)) continue;
      work_of_unit_[units_.find(i)] = true;
      if (graph_.ops()[i].phase == Phase::Forward) forward_of_unit_[units_.find(i)] = true;
    }
  }

  // A unit with backward work but only leaves in forward (a tied weight with the sum of its gradient's terms)
  // belongs to the first op that reads the leaf.
  void tie_leaves_to_readers() {
    std::vector<std::pair<uint32_t, uint32_t>> ties;
    for (uint32_t i = 0; i < count_; ++i) {
      const uint32_t unit = units_.find(i);
      if (!is_leaf(i) || !work_of_unit_[unit] || forward_of_unit_[unit]) continue;
      for (const OpId reader : users_[graph_.ops()[i].outputs[0].index])
        if (graph_.op(reader).phase == Phase::Forward) {
          ties.push_back({i, reader.index});
          break;
        }
    }
    for (const auto& [leaf, reader] : ties) units_.join(leaf, reader);
    std::vector<bool> work(count_, false);
    for (uint32_t i = 0; i < count_; ++i)
      if (!is_leaf(i)) work[units_.find(i)] = true;
    work_of_unit_ = std::move(work);
  }

  // Nodes are units with work, those on a cycle made one. kNone: a leaf by itself.
  std::vector<uint32_t> merge_cycles() {
    std::vector<uint32_t> node_of_unit(count_, kNone);
    uint32_t nodes = 0;
    for (uint32_t i = 0; i < count_; ++i) {
      uint32_t& node = node_of_unit[units_.find(i)];
      if (work_of_unit_[units_.find(i)] && node == kNone) node = nodes++;
    }
    std::vector<uint32_t> node_of_op(count_);
    for (uint32_t i = 0; i < count_; ++i) node_of_op[i] = node_of_unit[units_.find(i)];
    const std::vector<uint32_t> component = components(order_edges(node_of_op, nodes));
    for (uint32_t& node : node_of_op)
      if (node != kNone) node = component[node];
    return node_of_op;
  }

  // Which node has to stand before which: forward values go up, backward ones down.
  std::vector<std::vector<uint32_t>> order_edges(const std::vector<uint32_t>& node_of_op,
                                                 uint32_t nodes) const {
    std::vector<std::vector<uint32_t>> after(nodes);
    for (uint32_t i = 0; i < count_; ++i)
      for (const ValueId input : graph_.ops()[i].inputs) {
        if (!input.valid()) continue;
        const uint32_t producer = graph_.value(input).producer.index;
        uint32_t from = node_of_op[producer], to = node_of_op[i];
        if (from == kNone || to == kNone || from == to) continue;
        if (graph_.ops()[producer].phase != graph_.ops()[i].phase)
          continue;  // saved for backward: either way
        if (graph_.ops()[i].phase == Phase::Backward) std::swap(from, to);
        after[from].push_back(to);
      }
    for (auto& list : after) {
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
    return after;
  }

  // Topological, and among those that may come next the one whose ops stand first in the graph.
  std::vector<uint32_t> sort(const std::vector<uint32_t>& node_of_op, uint32_t& positions) const {
    positions = 0;
    for (const uint32_t node : node_of_op)
      if (node != kNone) positions = std::max(positions, node + 1);
    std::vector<uint32_t> key(positions, kNone), missing(positions, 0), position(positions, 0);
    for (uint32_t i = count_; i-- > 0;)
      if (node_of_op[i] != kNone && !is_leaf(i)) key[node_of_op[i]] = i;
    const auto after = order_edges(node_of_op, positions);
    for (const auto& list : after)
      for (const uint32_t to : list) ++missing[to];
    using Entry = std::pair<uint32_t, uint32_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
    for (uint32_t node = 0; node < positions; ++node)
      if (missing[node] == 0) ready.push({key[node], node});
    uint32_t next = 0;
    while (!ready.empty()) {
      const uint32_t node = ready.top().second;
      ready.pop();
      position[node] = next++;
      for (const uint32_t to : after[node])
        if (--missing[to] == 0) ready.push({key[to], to});
    }
    WEFT_CHECK(next == positions);
    std::vector<uint32_t> position_of_op(count_, 0);
    for (uint32_t i = 0; i < count_; ++i)
      if (node_of_op[i] != kNone) position_of_op[i] = position[node_of_op[i]];
    return position_of_op;
  }

  uint32_t first_reader_position(uint32_t leaf, const std::vector<uint32_t>& position_of_op) const {
    uint32_t first = kNone;
    for (const ValueId output : graph_.ops()[leaf].outputs)
      for (const OpId reader : users_[output.index]) first = std::min(first, position_of_op[reader.index]);
    return first == kNone ? 0 : first;
  }

  const Graph& graph_;
  std::span<const Model::Class> classes_;
  uint32_t count_;
  Union units_;
  std::vector<std::vector<OpId>> users_;
  std::vector<bool> work_of_unit_, forward_of_unit_;  // by unit's representative
};

// Chooses borders to keep: in each of so many windows of equal work the one that the fewest bytes cross, then
// any others by their bytes, ascending, that are not next to one that is kept already.
class BorderChooser {
 public:
  BorderChooser(const Model& model, std::vector<double> work_before, uint32_t keep)
      : bytes_(bytes_over_borders(model)), work_before_(std::move(work_before)), keep_(keep) {}

  std::set<uint32_t> run() {
    const auto positions = static_cast<uint32_t>(bytes_.size());
    const double total = work_before_.back();
    const uint32_t windows = (keep_ + 1) / 2;
    for (uint32_t w = 0, border = 1; w < windows; ++w) {
      uint32_t best = kNone;
      for (; border < positions && work_before_[border] <= total * (w + 1) / windows; ++border)
        if (best == kNone || bytes_[border] < bytes_[best]) best = border;
      if (best != kNone) kept_.insert(best);
    }
    std::vector<uint32_t> by_bytes(positions > 0 ? positions - 1 : 0);
    std::iota(by_bytes.begin(), by_bytes.end(), 1u);
    std::stable_sort(by_bytes.begin(), by_bytes.end(),
                     [&](uint32_t a, uint32_t b) { return bytes_[a] < bytes_[b]; });
    for (const double spacing : {total / (4.0 * keep_), 0.0})
      for (const uint32_t border : by_bytes)
        if (kept_.size() < keep_ && is_apart(border, spacing)) kept_.insert(border);
    return std::move(kept_);
  }

 private:
  bool is_apart(uint32_t border, double spacing) const {
    const auto after = kept_.lower_bound(border);
    if (after != kept_.end() && work_before_[*after] - work_before_[border] < spacing) return false;
    return after == kept_.begin() || work_before_[border] - work_before_[*std::prev(after)] >= spacing;
  }

  std::vector<int64_t> bytes_;
  std::vector<double> work_before_;
  size_t keep_;
  std::set<uint32_t> kept_;
};

// Neighbours become one until few enough are left. Borders that few bytes cross survive, evenly over the
// work.
void coarsen(Model& model, uint32_t positions_max) {
  if (model.positions <= positions_max) return;
  std::vector<double> work_before(model.positions + 1, 0);
  const Rates rates;
  const Model::Class& first = model.classes.front();
  for (const GroupCost& group : first.groups)
    work_before[model.position_of_op[first.lowered->source_op[group.begin].index] + 1] +=
        seconds_of(group, rates);
  std::partial_sum(work_before.begin(), work_before.end(), work_before.begin());
  const std::set<uint32_t> kept = BorderChooser(model, std::move(work_before), positions_max - 1).run();
  std::vector<uint32_t> merged(model.positions);
  uint32_t next = 0;
  for (uint32_t p = 0; p < model.positions; ++p) merged[p] = next += kept.contains(p);
  for (uint32_t& position : model.position_of_op) position = merged[position];
  model.positions = next + 1;
}

void add_holdings(Model& model) {
  const Graph& graph = *model.graph;
  auto& held = model.held_before;
  for (auto* list :
       {&held.parameters, &held.other, &held.fixed, &held.saved, &held.parameter_count, &held.data})
    list->assign(model.positions + 1, 0);
  std::unordered_map<std::string_view, bool> trained;
  for (const auto& output : graph.outputs())
    if (output.role == dag::OutputRole::Gradient) trained[output.name] = true;
  for (const auto& initializer : graph.initializers()) {
    const uint32_t at = model.position_of_op[graph.value(initializer.value).producer.index] + 1;
    const bool parameter = trained.contains(initializer.name);
    const int64_t bytes = graph.spec(initializer.value).bytes().value;
    (parameter ? held.parameters : held.other)[at] += bytes;
    if (!parameter && is_fixed(initializer)) held.fixed[at] += bytes;
    held.parameter_count[at] += parameter;
  }
  for (const ValueId input : graph.inputs())
    held.data[model.position_of_op[graph.value(input).producer.index] + 1] += graph.spec(input).bytes().value;
  std::vector<bool> saved(graph.values().size(), false);
  for (const Op& op : graph.ops())
    if (op.phase == Phase::Backward)
      for (const ValueId input : op.inputs)
        if (input.valid() && graph.producer(input).phase == Phase::Forward &&
            !graph.producer(input).inputs.empty())
          saved[input.index] = true;
  for (uint32_t v = 0; v < saved.size(); ++v)
    if (saved[v])
      held.saved[model.position_of_op[graph.values()[v].producer.index] + 1] +=
          graph.values()[v].spec.bytes().value;
  for (auto* list :
       {&held.parameters, &held.other, &held.fixed, &held.saved, &held.parameter_count, &held.data})
    std::partial_sum(list->begin(), list->end(), list->begin());
}

RangeMax workspace_by_position(const Model& model) {
  std::vector<int64_t> least;
  for (const Model::Class& of : model.classes) {
    std::vector<int64_t> widest(model.positions, 0);
    for (size_t g = 0; g < of.groups.size(); ++g) {
      int64_t& most = widest[of.position_of_group[g]];
      most = std::max(most, workspace_of(of, of.groups[g]));
    }
    if (least.empty()) least = widest;
    for (size_t p = 0; p < least.size(); ++p) least[p] = std::min(least[p], widest[p]);
  }
  return RangeMax(std::move(least));
}

RangeMax gradient_by_position(const Model& model) {
  std::vector<int64_t> largest(model.positions, 0);
  for (const auto& output : model.graph->outputs()) {
    if (output.role != dag::OutputRole::Gradient) continue;
    int64_t& most = largest[model.position_of_op[model.graph->value(output.value).producer.index]];
    most = std::max(most, model.graph->spec(output.value).bytes().value);
  }
  return RangeMax(std::move(largest));
}

}  // namespace

int64_t workspace_of(const Model::Class& of, const GroupCost& group) {
  if (!group.has_kernel) return 0;
  const dag::Graph& graph = of.lowered->graph;
  const Op& op = graph.ops()[group.begin];
  const int64_t pieces =
      op.kind == OpKind::ConvGradWeight ? 4 * graph.spec(op.outputs[0]).bytes().value : int64_t{0};
  return group.moved.value + pieces;
}

Model make_model(const Graph& graph, std::span<const std::shared_ptr<const dag::Lowered>> classes,
                 uint32_t positions_max) {
  Model model;
  model.graph = &graph;
  for (const auto& lowered : classes) model.classes.push_back({lowered, group_costs(lowered->graph), {}});
  if (classes.empty())
    model.classes.push_back(
        {std::make_shared<const dag::Lowered>(dag::as_it_is(graph)), group_costs(graph), {}});
  model.position_of_op = PositionFinder(graph, model.classes).run(model.positions);
  model.positions = std::max(1u, model.positions);  // a graph of leaves alone
  coarsen(model, std::max(1u, positions_max));
  for (Model::Class& of : model.classes)
    for (const GroupCost& group : of.groups)
      of.position_of_group.push_back(model.position_of_op[of.lowered->source_op[group.begin].index]);
  add_holdings(model);
  model.workspace = workspace_by_position(model);
  model.gradient = gradient_by_position(model);
  model.crossing = make_crossing(model);
  model.ring = find_ring(model);
  return model;
}

std::vector<double> seconds_of_positions(const Model& model, uint32_t device_class, const Rates& rates,
                                         bool accumulates) {
  std::vector<double> seconds(model.positions, 0);
  const Model::Class& of = model.classes[device_class];
  for (size_t g = 0; g < of.groups.size(); ++g)
    seconds[of.position_of_group[g]] += seconds_of(of.groups[g], rates);
  if (!accumulates) return seconds;
  const auto& held = model.held_before;
  for (uint32_t p = 0; p < model.positions; ++p)
    if (const int64_t count = held.parameter_count[p + 1] - held.parameter_count[p]; count > 0)
      seconds[p] += accumulate_seconds({held.parameters[p + 1] - held.parameters[p]}, rates) +
                    static_cast<double>(count - 1) * rates.kernel_seconds;
  return seconds;
}

}  // namespace weft::plan
