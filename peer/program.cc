#include "peer/program.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "dag/lifetimes.h"
#include "dag/once_a_step.h"
#include "dag/op_table.h"

namespace weft::peer {

using dag::Graph;
using dag::Layout;
using dag::OpId;
using dag::OpKind;
using dag::ValueId;

namespace {
constexpr uint32_t kNever = dag::RunOrder::kNone;

bool is_leaf(const dag::Op& op) { return op.inputs.empty(); }

template <typename T>
void add_once(std::vector<T>& list, T item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
}
}  // namespace

std::vector<GroupSignature> group_signatures(const Graph& graph, std::span<const ValueId> kept) {
  std::vector<uint32_t> group_of_op(graph.ops().size(), kNever);
  std::vector<GroupSignature> groups;
  // Leaves do not end a group: in a stage's graph, what it receives stands before its first reader.
  const dag::Op* before = nullptr;
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    const dag::Op& op = graph.ops()[i];
    if (is_leaf(op)) continue;
    const bool joins = before != nullptr && op.group.valid() && before->group == op.group;
    before = &op;
    if (!joins) groups.emplace_back();
    group_of_op[i] = static_cast<uint32_t>(groups.size() - 1);
    groups.back().ops.push_back(OpId{i});
  }
  std::vector<bool> is_output(graph.values().size(), false);
  for (const auto& output : graph.outputs()) is_output[output.value.index] = true;
  for (const ValueId value : kept) is_output[value.index] = true;
  for (const dag::Op& op : graph.ops())
    for (const ValueId input : op.inputs)
      if (input.valid() && group_of_op[graph.value(input).producer.index] !=
                               group_of_op[graph.value(op.outputs[0]).producer.index])
        is_output[input.index] = true;
  for (GroupSignature& group : groups) {
    const uint32_t self = group_of_op[group.ops.front().index];
    for (const OpId id : group.ops) {
      const dag::Op& op = graph.op(id);
      for (const ValueId input : op.inputs)
        if (input.valid() && group_of_op[graph.value(input).producer.index] != self)
          add_once(group.inputs, input);
      for (const ValueId output : op.outputs)
        if (group.ops.size() == 1 || is_output[output.index]) group.outputs.push_back(output);
    }
  }
  return groups;
}

Bytes place_blocks(std::span<Block> blocks, int64_t alignment) {
  std::vector<uint32_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return blocks[a].size > blocks[b].size; });
  const auto rounded = [&](Bytes size) { return align_up(size.value, alignment); };
  int64_t total = 0;
  std::vector<uint32_t> placed;  // ascending offset
  for (const uint32_t i : order) {
    Block& block = blocks[i];
    int64_t at = 0;
    for (const uint32_t p : placed) {
      const Block& other = blocks[p];
      if (other.last < block.first || block.last < other.first) continue;
      if (at + rounded(block.size) <= other.offset) break;
      at = std::max(at, other.offset + rounded(other.size));
    }
    block.offset = at;
    total = std::max(total, at + rounded(block.size));
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), i,
                         [&](uint32_t a, uint32_t b) { return blocks[a].offset < blocks[b].offset; }),
        i);
  }
  return {total};
}

bool is_view(const Graph& graph, const GroupSignature& group) {
  return group.ops.size() == 1 && dag::is_alias(graph, graph.op(group.ops[0]));
}

namespace {

// Storage roots: values that share bytes (views, in-place results) have one root, which has one place and one
// lifetime.
class ProgramBuilder {
 public:
  ProgramBuilder(const Graph& graph, const Backend& backend, std::vector<GroupSignature> groups,
                 std::span<const std::unique_ptr<Kernel>> kernels, const ProgramOptions& options)
      : graph_(graph),
        backend_(backend),
        kernels_(kernels),
        options_(options),
        runs_once_(dag::once_a_step(graph)) {
    program_.groups = std::move(groups);
    program_.places.resize(graph.values().size());
  }

  Program run() {
    find_lifetimes();
    bind();
    assign_gradients();
    reuse_in_place();
    place();
    for (const auto& kernel : kernels_)
      program_.workspace = std::max(program_.workspace, kernel->workspace_bytes());
    return std::move(program_);
  }

 private:
  uint32_t root(ValueId value) const {
    uint32_t at = value.index;
    while (root_[at] != at) at = root_[at];
    return at;
  }
  OpKind root_kind(uint32_t r) const { return graph_.producer(ValueId{r}).kind; }
  bool is_of_step(uint32_t r) const { return runs_once_[graph_.value(ValueId{r}).producer.index]; }
  bool persistent(uint32_t r) const {
    return root_kind(r) == OpKind::Initializer || root_kind(r) == OpKind::Constant || is_of_step(r);
  }

  // Time t is the run of group t; time 0 also holds the inputs.
  void find_lifetimes() {
    dag::RunOrder order{.group_of_op = std::vector(graph_.ops().size(), kNever),
                        .time_of_group = {},
                        .stage_of_op = {},
                        .ends = {static_cast<uint32_t>(program_.groups.size())},
                        .segment_of_op = {options_.segment_of_op.begin(), options_.segment_of_op.end()}};
    for (uint32_t t = 0; t < program_.groups.size(); ++t) {
      for (const OpId op : program_.groups[t].ops) order.group_of_op[op.index] = t;
      order.time_of_group.push_back(t);
    }
    for (uint32_t i = 0; i < graph_.ops().size(); ++i) {
      if (is_leaf(graph_.ops()[i]) || order.group_of_op[i] != kNever) continue;
      order.group_of_op[i] = static_cast<uint32_t>(order.time_of_group.size());  // an alias
      order.time_of_group.push_back(kNever);
    }
    dag::Lifetimes found = dag::find_lifetimes(graph_, order, options_.kept);
    root_ = std::move(found.root);
    lifetimes_ = std::move(found.of);
  }

  void bind() {
    for (uint32_t slot = 0; slot < options_.bound.size(); ++slot) {
      const ValueId value = options_.bound[slot];
      const uint32_t r = root(value);
      const bool of_another = value.index != r && root_kind(r) == OpKind::Input;
      if (!of_another && !persistent(r)) bound_root_.emplace(r, slot);
    }
  }

  void assign_gradients() {
    std::map<uint32_t, uint32_t> slot_of_root;
    for (const auto& output : graph_.outputs()) {
      if (output.role != dag::OutputRole::Gradient) continue;
      const auto slot = static_cast<uint32_t>(program_.gradients.size());
      program_.gradients.push_back(output.value);
      const uint32_t r = root(output.value);
      const OpKind kind = root_kind(r);
      const bool whole = backend_.storage_bytes(graph_.spec(output.value), Layout::Plain) ==
                         backend_.storage_bytes(graph_.spec(ValueId{r}), graph_.value(ValueId{r}).layout);
      // A later segment would find other microbatches added to it.
      const bool own = !lifetimes_[r].crosses_segments();
      if (kind != OpKind::Input && !persistent(r) && whole && own && slot_of_root.emplace(r, slot).second)
        gradient_root_[r] = slot;
      else  // the bytes are somebody else's already: added to the slot once they are complete
        program_.gradient_copies.push_back(
            {output.value, slot, persistent(r) || kind == OpKind::Input ? 0 : lifetimes_[r].first});
    }
  }

  void reuse_in_place() {
    for (uint32_t t = 0; t < program_.groups.size(); ++t) {
      const GroupSignature& group = program_.groups[t];
      std::vector<uint32_t> taken;
      for (size_t k = 0; k < group.outputs.size(); ++k) {
        const int input = kernels_[t]->in_place_input(k);
        if (input < 0) continue;
        const ValueId from = group.inputs[static_cast<size_t>(input)];
        const uint32_t r = root(from), own = root(group.outputs[k]);
        // A cache is written where it lies; nothing else of somebody else's is.
        const bool writes_cache = graph_.op(group.ops.front()).kind == OpKind::CacheWrite;
        if (bound_root_.contains(own) || (bound_root_.contains(r) && !writes_cache)) continue;
        const bool free_after = lifetimes_[r].last == t && !persistent(r) && !gradient_root_.contains(r) &&
                                !gradient_root_.contains(own);
        const bool same_size = size(r) == size(own);
        // Two operands on the same bytes may read them in different orders: then nothing may be overwritten.
        const auto readers =
            std::count_if(group.inputs.begin(), group.inputs.end(), [&](ValueId v) { return root(v) == r; });
        if (!free_after || !same_size || readers != 1 ||
            std::find(taken.begin(), taken.end(), r) != taken.end())
          continue;
        taken.push_back(r);
        root_[own] = r;
        lifetimes_[r].last = std::max(lifetimes_[r].last, lifetimes_[own].last);
        lifetimes_[r].last_segment = std::max(lifetimes_[r].last_segment, lifetimes_[own].last_segment);
      }
    }
  }

  Bytes size(uint32_t r) const {
    const dag::Value& value = graph_.value(ValueId{r});
    return backend_.storage_bytes(value.spec, value.layout);
  }

  // Other microbatches run between segments, not within one.
  bool in_scratch(uint32_t r) const {
    return !options_.segment_of_op.empty() && !lifetimes_[r].crosses_segments();
  }

  // By root.
  std::map<uint32_t, int64_t> place_step() {
    std::map<uint32_t, int64_t> offsets;
    for (const GroupSignature& group : program_.groups) {
      const bool once = runs_once_[group.ops.front().index];
      program_.runs_once.push_back(once);
      if (!once) continue;
      const uint32_t r = group.outputs.front().index;
      offsets[r] = program_.step.value;
      program_.step += Bytes{align_up(size(r).value, backend_.alignment())};
    }
    return offsets;
  }

  void place() {
    const std::map<uint32_t, int64_t> of_step = place_step();
    std::vector<Block> blocks, passing;
    std::map<uint32_t, uint32_t> block_of_root;
    for (uint32_t v = 0; v < graph_.values().size(); ++v) {
      const uint32_t r = root(ValueId{v});
      if (r != v || persistent(r) || bound_root_.contains(r) || lifetimes_[r].first == kNever) continue;
      const bool gradient = gradient_root_.contains(r);
      if (gradient && !options_.accumulates) continue;
      std::vector<Block>& to = in_scratch(r) ? passing : blocks;
      block_of_root[r] = static_cast<uint32_t>(to.size());
      to.push_back({size(r), lifetimes_[r].first, lifetimes_[r].last});
    }
    program_.arena = place_blocks(blocks, backend_.alignment());
    program_.scratch = place_blocks(passing, backend_.alignment());
    std::map<std::string_view, uint32_t> initializer_slot;
    for (uint32_t i = 0; i < graph_.initializers().size(); ++i)
      initializer_slot[graph_.initializers()[i].name] = i;
    for (uint32_t v = 0; v < graph_.values().size(); ++v) {
      const uint32_t r = root(ValueId{v});
      Place& place = program_.places[v];
      const dag::Op& op = graph_.producer(ValueId{r});
      if (op.kind == OpKind::Initializer) {
        place = {Residence::Initializer, initializer_slot.at(op.attributes.get_string(dag::Attr::Name)), 0};
      } else if (op.kind == OpKind::Constant) {
        place = {Residence::Constant, static_cast<uint32_t>(op.attributes.get_int(dag::Attr::Value)), 0};
      } else if (const auto bound = bound_root_.find(r); bound != bound_root_.end()) {
        place = {Residence::Bound, bound->second, 0};
      } else if (is_of_step(r)) {
        place = {Residence::Step, 0, of_step.at(r)};
      } else if (lifetimes_[r].first != kNever) {
        const auto block = block_of_root.find(r);
        if (block != block_of_root.end())
          place.offset = (in_scratch(r) ? passing : blocks)[block->second].offset;
        place.residence = in_scratch(r) ? Residence::Scratch : Residence::Arena;
        const auto gradient = gradient_root_.find(r);
        if (gradient == gradient_root_.end()) continue;
        place.residence = Residence::Gradient;
        place.slot = gradient->second;
      }
    }
  }

  const Graph& graph_;
  const Backend& backend_;
  std::span<const std::unique_ptr<Kernel>> kernels_;
  const ProgramOptions& options_;
  Program program_;
  std::vector<bool> runs_once_;                 // by op
  std::vector<uint32_t> root_;                  // by value
  std::vector<dag::Lifetime> lifetimes_;        // by root
  std::map<uint32_t, uint32_t> gradient_root_;  // root -> gradient slot
  std::map<uint32_t, uint32_t> bound_root_;     // root -> index in ProgramOptions::bound
};

}  // namespace

Program plan_program(const Graph& graph, const Backend& backend, std::vector<GroupSignature> groups,
                     std::span<const std::unique_ptr<Kernel>> kernels, const ProgramOptions& options) {
  WEFT_CHECK(groups.size() == kernels.size());
  return ProgramBuilder(graph, backend, std::move(groups), kernels, options).run();
}

}  // namespace weft::peer
