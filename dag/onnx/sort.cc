#include "dag/onnx/sort.h"

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dag/onnx/expand.h"

namespace weft::onnx {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<pb::NodeProto>;
constexpr size_t kShownMax = 8;  // nodes of a cycle that the message names

std::string name_of(const pb::NodeProto& node) {
  const std::string& name = node.name().empty() && node.output_size() > 0 ? node.output(0) : node.name();
  return node.op_type().substr(0, 64) + " '" + name.substr(0, 128) + "'";
}

using Names = std::unordered_set<std::string_view>;

void add_reads(const pb::NodeProto& node, Names& reads);

// What a subgraph reads that is not its own.
void add_free_names(const pb::GraphProto& body, Names& reads) {
  Names inside, own;
  for (const auto& input : body.input()) own.insert(input.name());
  for (const auto& initializer : body.initializer()) own.insert(initializer.name());
  for (const auto& node : body.node()) {
    add_reads(node, inside);
    own.insert(node.output().begin(), node.output().end());
  }
  for (const auto& output : body.output()) inside.insert(output.name());
  for (const std::string_view name : inside)
    if (!own.contains(name)) reads.insert(name);
}

void add_reads(const pb::NodeProto& node, Names& reads) {
  reads.insert(node.input().begin(), node.input().end());
  visit_bodies(node, [&](const pb::GraphProto& body) { add_free_names(body, reads); });
}

class Sorter {
 public:
  explicit Sorter(Nodes& nodes) : nodes_(nodes), states_(static_cast<size_t>(nodes.size())) {
    for (int i = 0; i < nodes.size(); ++i)
      for (const auto& output : nodes.Get(i).output())
        if (!output.empty()) producers_.emplace(output, i);
  }

  Status sort() {
    if (in_order()) return {};
    for (int i = 0; i < nodes_.size(); ++i) WEFT_TRY_STATUS(place(i));
    std::vector<pb::NodeProto*> all(static_cast<size_t>(nodes_.size()));
    for (size_t i = all.size(); i-- > 0;) all[i] = nodes_.ReleaseLast();
    for (const int i : order_) nodes_.AddAllocated(all[static_cast<size_t>(i)]);
    return {};
  }

 private:
  enum class State : uint8_t { Waiting, Open, Placed };
  struct Step {
    int node;
    std::vector<int> needs;  // those that are not looked at yet, the last first
  };

  bool in_order() const {
    for (int i = 0; i < nodes_.size(); ++i)
      for (const int needed : needs_of(i))
        if (needed >= i) return false;
    return true;
  }

  // In the order of the file, so that what comes of it is the same everywhere.
  std::vector<int> needs_of(int i) const {
    Names reads;
    add_reads(nodes_.Get(i), reads);
    std::vector<int> needs;
    for (const std::string_view name : reads)
      if (const auto producer = producers_.find(name); producer != producers_.end())
        needs.push_back(producer->second);
    std::sort(needs.begin(), needs.end(), std::greater<>());
    return needs;
  }

  Step step_of(int i) {
    states_[static_cast<size_t>(i)] = State::Open;
    return {i, needs_of(i)};
  }

  // The node behind what it needs, without recursion: a chain may be as long as the file.
  Status place(int first) {
    if (states_[static_cast<size_t>(first)] != State::Waiting) return {};
    std::vector<Step> path;
    path.push_back(step_of(first));
    while (!path.empty()) {
      Step& top = path.back();
      if (top.needs.empty()) {
        states_[static_cast<size_t>(top.node)] = State::Placed;
        order_.push_back(top.node);
        path.pop_back();
        continue;
      }
      const int next = top.needs.back();
      top.needs.pop_back();
      const State state = states_[static_cast<size_t>(next)];
      if (state == State::Open) return cycle(path, next);
      if (state == State::Waiting) path.push_back(step_of(next));
    }
    return {};
  }

  tl::unexpected<Error> cycle(const std::vector<Step>& path, int closing) const {
    size_t at = path.size();
    while (path[--at].node != closing) {
    }
    std::string names;
    for (size_t i = at; i < path.size() && i < at + kShownMax; ++i)
      names += (i > at ? ", which needs " : "") + name_of(nodes_.Get(path[i].node));
    if (path.size() > at + kShownMax)
      names += ", and so on through " + std::to_string(path.size() - at) + " nodes";
    return fail(ErrorCode::InvalidArgument, "the graph has a cycle: " + names +
                                                (path.size() - at > 1 ? ", which needs the first" : "") +
                                                (path.size() - at == 1 ? " needs itself" : ""));
  }

  Nodes& nodes_;
  std::unordered_map<std::string_view, int> producers_;
  std::vector<State> states_;
  std::vector<int> order_;
};

Status sort_all(Nodes& nodes) {
  for (auto& node : nodes)
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_g()) WEFT_TRY_STATUS(sort_all(*attribute.mutable_g()->mutable_node()));
      for (auto& graph : *attribute.mutable_graphs()) WEFT_TRY_STATUS(sort_all(*graph.mutable_node()));
    }
  return Sorter(nodes).sort();
}

}  // namespace

Status sort_nodes(pb::ModelProto& model) {
  WEFT_TRY_STATUS(sort_all(*model.mutable_graph()->mutable_node()));
  for (auto& function : *model.mutable_functions()) WEFT_TRY_STATUS(sort_all(*function.mutable_node()));
  return {};
}

}  // namespace weft::onnx
