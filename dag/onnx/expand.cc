#include "dag/onnx/expand.h"

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>

namespace weft::onnx {
namespace {

// Of NodeProto and FunctionProto (see unread_field).
constexpr int kNodeOverload = 8;
constexpr int kFunctionDefaults = 11;
constexpr int kFunctionOverload = 13;

std::string overload_of(const google::protobuf::Message& message, int number) {
  const auto found = unread_field(message, number);
  return found.empty() ? std::string() : found.back();
}

std::string key_of(std::string_view domain, const std::string& name, const std::string& overload) {
  std::string key(domain == "ai.onnx" ? "" : domain);
  key += '\0';
  key += name;
  key += '\0';
  return key + overload;
}

std::string short_name(std::string_view name) { return "'" + std::string(name.substr(0, 128)) + "'"; }

bool has_body(const pb::NodeProto& node) {
  bool found = false;
  visit_bodies(node, [&](const pb::GraphProto&) { found = true; });
  return found;
}

// Names of one graph or function body, and what they are called in the result.
struct Scope {
  const Scope* outer = nullptr;  // of a subgraph
  std::unordered_map<std::string, std::string> names = {};

  const std::string* find(const std::string& name) const {
    for (const Scope* scope = this; scope; scope = scope->outer)
      if (const auto found = scope->names.find(name); found != scope->names.end()) return &found->second;
    return nullptr;
  }
};

struct Function {
  const pb::FunctionProto* proto = nullptr;
  std::unordered_map<std::string, pb::AttributeProto> defaults = {};
  int64_t opset = 0;
  bool open = false;   // being expanded, or counted
  int64_t nodes = -1;  // that a call becomes, at least; negative: not counted yet
};

// Where a node stands: what it may refer to, and who receives it.
struct Place {
  Scope& scope;
  const std::unordered_map<std::string, const pb::AttributeProto*>* arguments = nullptr;  // of the call
  int64_t opset = 0;
  std::string path = {};  // the calls around it, for messages
  int depth = 0;
  std::function<pb::NodeProto*()> add;
};

class Expander {
 public:
  Expander(const OnnxModel::Structure& model, const ImportLimits& limits)
      : model_(model),
        limits_(limits),
        nodes_left_(limits.expanded_node_count_max),
        bytes_left_(limits.expanded_bytes_max) {}

  Result<ExpandedGraph> run() {
    const auto& graph = model_.proto.graph();
    result_.graph = &graph;
    result_.opset = model_.opset;
    WEFT_TRY_STATUS(read_functions());
    const bool plain = functions_.empty() && std::none_of(graph.node().begin(), graph.node().end(),
                                                          [](const auto& n) { return has_body(n); });
    Scope scope;
    if (!plain) enter(scope);
    Place place{.scope = scope, .opset = model_.opset, .add = [this] { return add_top(); }};
    for (const auto& node : graph.node()) {
      if (find_function(node) || has_body(node)) {
        WEFT_TRY_STATUS(expand(node, place));
      } else {
        WEFT_TRY_STATUS(check_attributes(node, place));
        result_.nodes.push_back(&node);
      }
      if (!plain)
        for (const auto& output : node.output()) scope.names.emplace(output, output);
    }
    return std::move(result_);
  }

 private:
  // Names of the file's graph stay what they are; all of them are taken, also those that come later.
  void enter(Scope& scope) {
    const auto& graph = model_.proto.graph();
    for (const auto& [name, tensor] : model_.weights) scope.names.emplace(name, name);
    for (const auto& input : graph.input()) scope.names.emplace(input.name(), input.name());
    for (const auto& [name, same] : scope.names) taken_.insert(name);
    for (const auto& node : graph.node()) taken_.insert(node.output().begin(), node.output().end());
  }

  pb::NodeProto* add_top() {
    pb::NodeProto* node = &result_.made.emplace_back();
    result_.nodes.push_back(node);
    return node;
  }

  Status read_functions() {
    for (const auto& proto : model_.proto.functions()) {
      Function function{.proto = &proto, .opset = model_.opset};
      for (const auto& entry : proto.opset_import())
        if (entry.domain().empty() || entry.domain() == "ai.onnx") function.opset = entry.version();
      for (const auto& bytes : unread_field(proto, kFunctionDefaults)) {
        pb::AttributeProto attribute;
        if (!attribute.ParseFromString(bytes))
          return fail(ErrorCode::Corrupted, "function " + short_name(proto.name()) +
                                                " has a default attribute that protobuf cannot parse");
        std::string name = attribute.name();
        function.defaults.insert_or_assign(std::move(name), std::move(attribute));
      }
      const std::string key = key_of(proto.domain(), proto.name(), overload_of(proto, kFunctionOverload));
      if (!functions_.emplace(key, std::move(function)).second)
        return fail(ErrorCode::InvalidArgument,
                    "two functions have the name " + short_name(proto.domain() + "." + proto.name()));
    }
    return {};
  }

  Function* find_function(const pb::NodeProto& node) {
    if (functions_.empty()) return nullptr;
    const auto found =
        functions_.find(key_of(node.domain(), node.op_type(), overload_of(node, kNodeOverload)));
    return found == functions_.end() ? nullptr : &found->second;
  }

  // Nodes that a call becomes, counted without making any: at least so many, for what calls itself or stands
  // too deep is refused when it is met. Counts end soon after the limit.
  int64_t nodes_of(Function& function, int depth) {
    if (function.nodes >= 0 || function.open || depth > limits_.call_depth_max)
      return std::max<int64_t>(function.nodes, 0);
    function.open = true;
    function.nodes = nodes_of(function.proto->node(), depth);
    function.open = false;
    return function.nodes;
  }
  int64_t nodes_of(const google::protobuf::RepeatedPtrField<pb::NodeProto>& nodes, int depth) {
    int64_t count = 0;
    for (const auto& node : nodes) {
      if (count > limits_.expanded_node_count_max) break;
      ++count;
      if (Function* function = find_function(node)) count += nodes_of(*function, depth + 1);
      visit_bodies(node, [&](const pb::GraphProto& body) { count += nodes_of(body.node(), depth + 1); });
    }
    return count;
  }

  static std::string where(const pb::NodeProto& node, const Place& place) {
    return node.op_type().substr(0, 64) + " " + short_name(place.path + node.name());
  }

  Status charge(int64_t nodes_made, size_t bytes_made, const pb::NodeProto& node, const Place& place) {
    nodes_left_ -= nodes_made;
    bytes_left_ -= static_cast<int64_t>(bytes_made);
    if (nodes_left_ >= 0 && bytes_left_ >= 0) return {};
    const bool nodes = nodes_left_ < 0;
    return fail(ErrorCode::ResourceExhausted,
                where(node, place) + ": the model's functions and subgraphs make more than " +
                    std::to_string(nodes ? limits_.expanded_node_count_max : limits_.expanded_bytes_max) +
                    (nodes ? " nodes" : " bytes") + " once each call stands for what it does");
  }

  // A name that no other value has: its own where nobody took it.
  std::string fresh(const std::string& name) {
    if (taken_.insert(name).second) return name;
    std::string other;
    do {
      other = name + "#" + std::to_string(++renamed_);
    } while (!taken_.insert(other).second);
    return other;
  }
  Status define(Scope& scope, const std::string& name, std::string as, const std::string& who) {
    if (static_cast<int64_t>(name.size()) > limits_.name_bytes_max)
      return fail(ErrorCode::OutOfRange, who + " defines a name that is too long");
    if (!scope.names.emplace(name, std::move(as)).second)
      return fail(ErrorCode::InvalidArgument,
                  who + " defines " + short_name(name) + ", which is defined already");
    return {};
  }

  Status expand(const pb::NodeProto& node, Place& place) {
    WEFT_TRY_STATUS(charge(1, node.ByteSizeLong() + 64, node, place));
    if (place.depth > limits_.call_depth_max)
      return fail(ErrorCode::ResourceExhausted, where(node, place) +
                                                    ": calls and subgraphs stand in one another more than " +
                                                    std::to_string(limits_.call_depth_max) + " deep");
    if (Function* function = find_function(node)) {
      const int64_t nodes = nodes_of(*function, place.depth);
      if (nodes > nodes_left_) return charge(nodes, 0, node, place);  // before the first of them is made
      return call(node, *function, place);
    }
    return copy(node, place);
  }

  Result<std::string> resolve(const std::string& name, const pb::NodeProto& node, const Place& place) const {
    if (name.empty()) return name;
    const std::string* found = place.scope.find(name);
    if (!found)
      return fail(ErrorCode::InvalidArgument,
                  where(node, place) + " reads " + short_name(name) + ", which nothing defines before it");
    return *found;
  }

  // ---- a node as it is, over the names of the result ----

  Status copy(const pb::NodeProto& node, Place& place) {
    pb::NodeProto to;
    to.set_name((place.path + node.name()).substr(0, static_cast<size_t>(limits_.name_bytes_max)));
    to.set_op_type(node.op_type());
    to.set_domain(node.domain());
    for (const auto& input : node.input()) {
      WEFT_TRY(*to.add_input(), resolve(input, node, place));
    }
    for (const auto& attribute : node.attribute())
      WEFT_TRY_STATUS(copy_attribute(attribute, node, place, to));
    const bool top = place.depth == 0;  // there the names are the file's
    for (const auto& output : node.output()) {
      std::string name = output;
      if (!top && !output.empty()) {
        WEFT_TRY(name, name_output(place.scope, output, where(node, place)));
      }
      to.add_output(std::move(name));
    }
    pb::NodeProto* added = place.add();
    added->Swap(&to);
    if (place.opset != model_.opset) result_.opsets[added] = place.opset;
    return {};
  }

  // What an output is called in the result. One of a function has the caller's name waiting for it.
  Result<std::string> name_output(Scope& scope, const std::string& output, const std::string& who) {
    std::string name;
    if (const auto waiting = awaited_.find(&scope); waiting != awaited_.end())
      if (const auto found = waiting->second.find(output); found != waiting->second.end())
        name = found->second;
    if (name.empty()) name = fresh(output);
    WEFT_TRY_STATUS(define(scope, output, name, who));
    return name;
  }

  Status check_attributes(const pb::NodeProto& node, const Place& place) const {
    for (const auto& attribute : node.attribute())
      if (!attribute.ref_attr_name().empty())
        return fail(ErrorCode::InvalidArgument,
                    where(node, place) + ": attribute " + short_name(attribute.name()) +
                        " refers to a function's attribute outside of a function");
    return {};
  }

  Status copy_attribute(const pb::AttributeProto& attribute, const pb::NodeProto& node, Place& place,
                        pb::NodeProto& to) {
    if (!attribute.ref_attr_name().empty()) {
      if (!place.arguments) return check_attributes(node, place);
      const auto given = place.arguments->find(attribute.ref_attr_name());
      if (given == place.arguments->end()) return {};  // left out by the caller: left out here
      WEFT_TRY_STATUS(charge(0, given->second->ByteSizeLong(), node, place));
      pb::AttributeProto* added = to.add_attribute();
      *added = *given->second;
      added->set_name(attribute.name());
      return {};
    }
    if (attribute.graphs_size() > 0)
      return fail(ErrorCode::Unsupported, where(node, place) + ": attribute " + short_name(attribute.name()) +
                                              " holds several graphs");
    pb::AttributeProto* added = to.add_attribute();
    if (!attribute.has_g()) {
      *added = attribute;
      return {};
    }
    added->set_name(attribute.name());
    added->set_type(pb::AttributeProto::GRAPH);
    return copy_graph(attribute.g(), node, place, *added->mutable_g());
  }

  // Sequences may pass from node to node; nothing else than them and tensors does.
  Status check_type(const pb::ValueInfoProto& port, const std::string& who) const {
    const auto form = port.type().value_case();
    if (form == pb::TypeProto::VALUE_NOT_SET || form == pb::TypeProto::kTensorType ||
        form == pb::TypeProto::kSequenceType)
      return {};
    return fail(ErrorCode::Unsupported,
                who + ": " + short_name(port.name()) + " of its subgraph is a map, optional or sparse value");
  }

  Status copy_graph(const pb::GraphProto& graph, const pb::NodeProto& node, Place& place,
                    pb::GraphProto& to) {
    const std::string who = where(node, place);
    if (graph.sparse_initializer_size() > 0)
      return fail(ErrorCode::Unsupported, who + ": its subgraph has sparse initializers");
    Scope scope{.outer = &place.scope};
    for (const auto& input : graph.input()) {
      WEFT_TRY_STATUS(check_type(input, who));
      auto& port = *to.add_input();
      port.set_name(fresh(input.name()));
      WEFT_TRY_STATUS(define(scope, input.name(), port.name(), who));
    }
    for (const auto& initializer : graph.initializer()) {
      auto& tensor = *to.add_initializer();
      tensor = initializer;
      tensor.set_name(fresh(initializer.name()));
      WEFT_TRY_STATUS(define(scope, initializer.name(), tensor.name(), who));
    }
    Place inside{.scope = scope,
                 .arguments = place.arguments,
                 .opset = place.opset,
                 .path = place.path,
                 .depth = place.depth + 1,
                 .add = [&to] { return to.add_node(); }};
    for (const auto& inner : graph.node()) WEFT_TRY_STATUS(expand(inner, inside));
    for (const auto& output : graph.output()) {
      WEFT_TRY_STATUS(check_type(output, who));
      if (output.name().empty())
        return fail(ErrorCode::InvalidArgument, who + ": an output of its subgraph has no name");
      auto& port = *to.add_output();
      *port.mutable_type() = output.type();
      WEFT_TRY(*port.mutable_name(), resolve(output.name(), node, inside));
    }
    return {};
  }

  // ---- a call ----

  Status call(const pb::NodeProto& node, Function& function, Place& place) {
    const pb::FunctionProto& proto = *function.proto;
    const std::string who = where(node, place);
    if (function.open) return fail(ErrorCode::InvalidArgument, who + ": the function calls itself");
    if (node.input_size() > proto.input_size() || node.output_size() > proto.output_size())
      return fail(ErrorCode::InvalidArgument,
                  who + ": the function has " + std::to_string(proto.input_size()) + " inputs and " +
                      std::to_string(proto.output_size()) + " outputs, and the call has more");
    Scope scope;
    for (int i = 0; i < proto.input_size(); ++i) {
      std::string actual;
      if (i < node.input_size()) {
        WEFT_TRY(actual, resolve(node.input(i), node, place));
      }
      WEFT_TRY_STATUS(define(scope, proto.input(i), std::move(actual), who));
    }
    WEFT_TRY(const auto arguments, arguments_of(node, function, place));
    WEFT_TRY(auto results, results_of(node, proto, place));
    Place inside{.scope = scope,
                 .arguments = &arguments,
                 .opset = function.opset,
                 .path = (place.path + (node.name().empty() ? node.op_type() : node.name()) + "/"),
                 .depth = place.depth + 1,
                 .add = place.add};
    if (inside.path.size() > 256) inside.path = ".../";
    awaited_[&scope] = results;
    function.open = true;
    for (const auto& inner : proto.node()) WEFT_TRY_STATUS(expand(inner, inside));
    function.open = false;
    awaited_.erase(&scope);
    return hand_back(node, proto, inside, results);
  }

  // The names that the function's outputs get: the caller's, under which they are defined there too.
  Result<std::unordered_map<std::string, std::string>> results_of(const pb::NodeProto& node,
                                                                  const pb::FunctionProto& proto,
                                                                  Place& place) {
    std::unordered_map<std::string, std::string> results;
    for (int i = 0; i < node.output_size(); ++i) {
      const std::string& output = node.output(i);
      if (output.empty()) continue;
      std::string name = output;
      if (place.depth > 0) {
        WEFT_TRY(name, name_output(place.scope, output, where(node, place)));
      }
      if (!results.emplace(proto.output(i), std::move(name)).second)
        return fail(ErrorCode::InvalidArgument,
                    where(node, place) + ": the function has two outputs " + short_name(proto.output(i)));
    }
    return results;
  }

  // An output that is an input, or an outer call's result under another name, is a copy.
  Status hand_back(const pb::NodeProto& node, const pb::FunctionProto& proto, Place& inside,
                   const std::unordered_map<std::string, std::string>& results) {
    for (const auto& output : proto.output()) {
      const auto wanted = results.find(output);
      if (wanted == results.end()) continue;
      const std::string* actual = inside.scope.find(output);
      if (!actual || actual->empty())
        return fail(ErrorCode::InvalidArgument, where(node, inside) + ": its output " + short_name(output) +
                                                    " is computed by nothing in the function");
      if (*actual == wanted->second) continue;
      pb::NodeProto* added = inside.add();
      added->set_op_type("Identity");
      added->set_name(inside.path + "output");
      added->add_input(*actual);
      added->add_output(wanted->second);
      if (inside.opset != model_.opset) result_.opsets[added] = inside.opset;
    }
    return {};
  }

  Result<std::unordered_map<std::string, const pb::AttributeProto*>> arguments_of(const pb::NodeProto& node,
                                                                                  const Function& function,
                                                                                  Place& place) {
    std::unordered_map<std::string, const pb::AttributeProto*> arguments;
    for (const auto& [name, attribute] : function.defaults) arguments[name] = &attribute;
    for (const auto& attribute : node.attribute()) {
      const pb::AttributeProto* value = &attribute;
      if (!attribute.ref_attr_name().empty()) {
        if (!place.arguments) return fail(check_attributes(node, place).error());
        const auto outer = place.arguments->find(attribute.ref_attr_name());
        if (outer == place.arguments->end()) continue;
        value = outer->second;
      }
      if (value->has_g() || value->graphs_size() > 0)
        return fail(ErrorCode::Unsupported, where(node, place) + ": it hands a graph to a function");
      arguments[attribute.name()] = value;
    }
    return arguments;
  }

  const OnnxModel::Structure& model_;
  const ImportLimits& limits_;
  int64_t nodes_left_, bytes_left_;
  std::unordered_map<std::string, Function> functions_;
  std::unordered_set<std::string> taken_;
  std::unordered_map<const Scope*, std::unordered_map<std::string, std::string>> awaited_;
  int64_t renamed_ = 0;
  ExpandedGraph result_;
};

}  // namespace

Result<ExpandedGraph> expand_functions(const OnnxModel::Structure& model, const ImportLimits& limits) {
  return Expander(model, limits).run();
}

}  // namespace weft::onnx
