// A graph op by op. Kinds and attributes go by name, in a table of their own, so that a number on the wire
// never means another op than the sender meant. The reader builds the graph anew through the op table's shape
// rules.
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "dag/op_table.h"
#include "proto/codec/wire.h"

namespace weft::proto {
namespace {

using dag::Attr;
using dag::AttrValue;
using dag::GroupId;
using dag::Layout;
using dag::OpId;
using dag::OpKind;
using dag::ValueId;

// A constant's Value, which is an index, is not sent.
bool is_leaf(OpKind kind) {
  return kind == OpKind::Input || kind == OpKind::Initializer || kind == OpKind::Constant;
}

// ---- writing

// Gives each name that occurs a number, in the order of first use.
template <typename Enum>
class NameTable {
 public:
  uint32_t number(Enum entry) {
    const auto [at, fresh] = numbers_.emplace(entry, static_cast<uint32_t>(names_.size()));
    if (fresh) names_.emplace_back(to_string(entry));
    return at->second;
  }
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::map<Enum, uint32_t> numbers_;
  std::vector<std::string> names_;
};

void put_attribute(Attr name, const AttrValue& value, uint32_t number, wire::Attribute& to) {
  WEFT_CHECK(value.index() == static_cast<size_t>(type_of(name)));
  to.set_name(number);
  if (const auto* integer = std::get_if<int64_t>(&value)) to.set_integer(*integer);
  if (const auto* real = std::get_if<double>(&value)) to.set_number(*real);
  if (const auto* integers = std::get_if<dag::Ints>(&value)) {
    to.mutable_integers();  // there, even when it has no entries
    put_plain(*integers, *to.mutable_integers()->mutable_entries());
  }
  if (const auto* text = std::get_if<std::string>(&value)) to.set_text(*text);
}

void put_leaf(const dag::Graph& graph, const dag::Op& op, const dag::Initializer* initializer, wire::Op& to) {
  put(graph.spec(op.outputs[0]), *to.mutable_spec());
  if (initializer) to.set_role(put_enum<wire::InitializerRole>(initializer->role));
  if (op.kind != OpKind::Constant) return;
  const auto bytes = graph.constant(op).bytes();
  to.set_constant(bytes.data(), bytes.size());
}

}  // namespace

void put(const dag::Graph& from, wire::Graph& to) {
  NameTable<OpKind> kinds;
  NameTable<Attr> attributes;
  size_t initializer = 0;  // they stand in the order of their ops
  for (uint32_t i = 0; i < from.ops().size(); ++i) {
    const dag::Op& op = from.ops()[i];
    wire::Op& entry = *to.add_ops();
    entry.set_kind(kinds.number(op.kind));
    entry.set_name(op.name);
    for (const ValueId input : op.inputs) entry.add_inputs(input.valid() ? input.index + 1 : 0);
    entry.set_backward(op.phase == dag::Phase::Backward);
    WEFT_CHECK(op.origin.index <= i);
    entry.set_origin_before(i - op.origin.index);
    entry.set_group(op.group.valid() ? op.group.index + 1 : 0);
    bool plain = true;
    for (const ValueId output : op.outputs)
      plain = plain && from.value(output).layout == Layout::Plain && from.value(output).name.empty();
    for (const ValueId output : op.outputs) {
      if (plain) break;
      entry.add_outputs()->set_name(from.value(output).name);
      entry.mutable_outputs()->rbegin()->set_layout(put_enum<wire::Layout>(from.value(output).layout));
    }
    if (is_leaf(op.kind)) {
      put_leaf(from, op, op.kind == OpKind::Initializer ? &from.initializers()[initializer++] : nullptr,
               entry);
    } else {
      for (const auto& [name, value] : op.attributes.entries())
        put_attribute(name, value, attributes.number(name), *entry.add_attributes());
    }
  }
  for (const dag::GraphOutput& output : from.outputs()) {
    wire::GraphOutput& entry = *to.add_outputs();
    entry.set_name(output.name);
    entry.set_value(output.value.index);
    entry.set_role(put_enum<wire::OutputRole>(output.role));
  }
  put_plain(kinds.names(), *to.mutable_op_kinds());
  put_plain(attributes.names(), *to.mutable_attribute_names());
}

// ---- reading

namespace {

tl::unexpected<Error> refuse(ErrorCode code, const std::string& why) { return fail(code, why); }
tl::unexpected<Error> beyond(const std::string& why) { return fail(ErrorCode::OutOfRange, why); }

// The entries that the names stand for.
template <typename Enum, typename List>
Result<std::vector<Enum>> look_up(const List& names, size_t count, const char* what) {
  std::unordered_map<std::string_view, Enum> known;
  for (size_t i = 0; i < count; ++i) known.emplace(to_string(static_cast<Enum>(i)), static_cast<Enum>(i));
  if (static_cast<size_t>(names.size()) > count)
    return beyond("more " + std::string(what) + "s than there are");
  std::vector<Enum> entries;
  for (const std::string& name : names) {
    const auto at = known.find(name);
    if (at == known.end())
      return refuse(ErrorCode::Unsupported,
                    "the " + std::string(what) + " '" + put_text(name, kNameMax) +
                        "' is unknown; install the same version of weft on both sides");
    entries.push_back(at->second);
  }
  return entries;
}

class GraphReader {
 public:
  GraphReader(const wire::Graph& from, std::vector<OpKind> kinds, std::vector<Attr> attributes)
      : from_(from),
        kinds_(std::move(kinds)),
        attributes_(std::move(attributes)),
        builder_(dag::op_table()) {}

  Result<dag::Graph> run() {
    for (int i = 0; i < from_.ops_size(); ++i)
      if (const Status added = add(static_cast<uint32_t>(i), from_.ops(i)); !added)
        return fail(added.error().within("graph: op " + std::to_string(i)));
    for (int i = 0; i < from_.outputs_size(); ++i)
      if (const Status added = add_output(from_.outputs(i)); !added)
        return fail(added.error().within("graph: output " + std::to_string(i)));
    return builder_.finish();
  }

 private:
  Status add(uint32_t index, const wire::Op& op) {
    if (op.kind() >= kinds_.size()) return beyond("a kind that is not in the graph's table");
    const OpKind kind = kinds_[op.kind()];
    if (op.name().size() > kSymbolMax) return beyond("a name of more than 4096 bytes");
    if (op.origin_before() > index) return beyond("an origin before the first op");
    builder_.set_phase(op.backward() ? dag::Phase::Backward : dag::Phase::Forward);
    builder_.set_origin(op.origin_before() == 0 ? OpId{} : OpId{index - op.origin_before()});
    if (is_leaf(kind)) {
      WEFT_TRY_STATUS(add_leaf(kind, op));
    } else {
      WEFT_TRY_STATUS(add_op(kind, op));
    }
    if (op.group() != 0) builder_.set_group(OpId{index}, GroupId{op.group() - 1});
    return finish_values(builder_.graph().ops()[index], op);
  }

  Status add_leaf(OpKind kind, const wire::Op& op) {
    if (op.inputs_size() != 0 || op.attributes_size() != 0)
      return beyond("a leaf with operands or attributes");
    dag::TensorSpec spec;
    WEFT_TRY_STATUS(get(op.spec(), spec));
    if (kind == OpKind::Constant) return add_constant(std::move(spec), op);
    if (!leaves_.insert(op.name()).second) return beyond("the name '" + op.name() + "' is there twice");
    if (kind == OpKind::Input) {
      builder_.input(op.name(), std::move(spec));
      return {};
    }
    if (builder_.graph().initializers().size() >= kInitializersMax)
      return beyond("more than " + std::to_string(kInitializersMax) + " initializers");
    Reader read("Op");
    dag::InitializerRole role{};
    read.enumerator(op.role(), role, dag::InitializerRole::Buffer, "role");
    WEFT_TRY_STATUS(read.status());
    builder_.initializer(op.name(), std::move(spec), role);
    return {};
  }

  Status add_constant(dag::TensorSpec spec, const wire::Op& op) {
    const std::string& bytes = op.constant();
    if (spec.bytes().value != static_cast<int64_t>(bytes.size()))
      return refuse(ErrorCode::Corrupted,
                    "a constant " + to_string(spec) + " of " + std::to_string(bytes.size()) + " bytes");
    constants_size_ += bytes.size();
    if (constants_size_ > kConstantsSizeMax) return beyond("constants of more than 64 MiB together");
    builder_.constant(dag::Tensor(std::move(spec), std::as_bytes(std::span(bytes))), op.name());
    return {};
  }

  Status add_op(OpKind kind, const wire::Op& op) {
    std::vector<ValueId> inputs;
    for (const uint32_t input : op.inputs()) {
      if (input > builder_.graph().values().size()) return beyond("an operand that no op before it makes");
      inputs.push_back(input == 0 ? ValueId{} : ValueId{input - 1});
    }
    WEFT_TRY(dag::Attributes attributes, read_attributes(op));
    return builder_.try_add(kind, std::move(inputs), std::move(attributes), op.name()).map([](const auto&) {
    });
  }

  Result<dag::Attributes> read_attributes(const wire::Op& op) {
    dag::Attributes attributes;
    for (const wire::Attribute& entry : op.attributes()) {
      if (entry.name() >= attributes_.size()) return beyond("an attribute that is not in the graph's table");
      const Attr name = attributes_[entry.name()];
      const auto about = [&](const char* why) {
        return beyond("attribute " + std::string(to_string(name)) + why);
      };
      if (attributes.has(name)) return about(" is there twice");
      WEFT_TRY(AttrValue value, read_value(entry));
      if (value.index() != static_cast<size_t>(type_of(name))) return about(" has another type");
      if (name == Attr::DType && !is_one_of(value, dag::DType::Bool)) return about(" is no dtype");
      if (name == Attr::Layout && !is_one_of(value, Layout::Blocked16)) return about(" is no layout");
      attributes.set(name, std::move(value));
    }
    return attributes;
  }

  template <typename Enum>
  static bool is_one_of(const AttrValue& value, Enum last) {
    const int64_t number = std::get<int64_t>(value);
    return number >= 0 && number <= static_cast<int64_t>(last);
  }

  static Result<AttrValue> read_value(const wire::Attribute& entry) {
    switch (entry.value_case()) {
      case wire::Attribute::kInteger:
        return AttrValue(entry.integer());
      case wire::Attribute::kNumber:
        return AttrValue(entry.number());
      case wire::Attribute::kIntegers: {
        const auto& entries = entry.integers().entries();
        if (static_cast<size_t>(entries.size()) > kIntegersMax)
          return beyond("an attribute of more than 1024 entries");
        return AttrValue(dag::Ints(entries.begin(), entries.end()));
      }
      case wire::Attribute::kText:
        if (entry.text().size() > kSymbolMax) return beyond("an attribute of more than 4096 bytes");
        return AttrValue(entry.text());
      case wire::Attribute::VALUE_NOT_SET:
        break;
    }
    return beyond("an attribute without a value");
  }

  // Names and layouts, and bounds that hold for every value.
  Status finish_values(const dag::Op& op, const wire::Op& from) {
    const std::vector<ValueId> outputs = op.outputs;
    if (from.outputs_size() != 0 && static_cast<size_t>(from.outputs_size()) != outputs.size())
      return beyond(std::to_string(from.outputs_size()) + " outputs where there are " +
                    std::to_string(outputs.size()));
    for (size_t i = 0; i < outputs.size(); ++i) {
      const dag::TensorSpec& spec = builder_.spec(outputs[i]);
      if (spec.shape.size() > kDimsMax) return beyond("a value of more than 16 dims");
      elements_ += spec.element_count();
      if (elements_ > kElementsMax) return beyond("values of more than 2^44 elements together");
      if (from.outputs_size() == 0) {
        builder_.set_name(outputs[i], {});
        continue;
      }
      const wire::Value& value = from.outputs(static_cast<int>(i));
      Reader read("Value");
      Layout layout = Layout::Plain;
      std::string name;
      read.text(value.name(), name, kSymbolMax, "name");
      read.enumerator(value.layout(), layout, Layout::Blocked16, "layout");
      WEFT_TRY_STATUS(read.status());
      if (layout != Layout::Plain && (spec.rank() < 3 || spec.shape[1] % dag::block_size(layout) != 0))
        return beyond(to_string(spec) + " cannot lie in layout " + std::string(to_string(layout)));
      builder_.set_layout(outputs[i], layout);
      builder_.set_name(outputs[i], std::move(name));
    }
    if (op.kind == OpKind::Reorder && op.attributes.get_int(Attr::Layout) !=
                                          static_cast<int64_t>(builder_.graph().value(outputs[0]).layout))
      return beyond("a reordering into another layout than its output's");
    return {};
  }

  Status add_output(const wire::GraphOutput& from) {
    Reader read("GraphOutput");
    std::string name;
    dag::OutputRole role{};
    read.text(from.name(), name, kSymbolMax, "name");
    read.enumerator(from.role(), role, dag::OutputRole::Cotangent, "role");
    read.require(from.value() < builder_.graph().values().size(), "value", "there is no such value");
    WEFT_TRY_STATUS(read.status());
    const ValueId value{from.value()};
    if (role == dag::OutputRole::Gradient || role == dag::OutputRole::StateUpdate) {
      if (initializers_.empty())
        for (const auto& initializer : builder_.graph().initializers())
          initializers_.emplace(initializer.name, initializer.value);
      const auto of = initializers_.find(name);
      if (of == initializers_.end() || builder_.spec(of->second) != builder_.spec(value))
        return beyond("'" + name + "' is no initializer of that shape");
      if (!updated_.insert({role, of->second}).second) return beyond("'" + name + "' is there twice");
    }
    builder_.output(std::move(name), value, role);
    return {};
  }

  const wire::Graph& from_;
  const std::vector<OpKind> kinds_;
  const std::vector<Attr> attributes_;
  dag::GraphBuilder builder_;
  std::unordered_set<std::string> leaves_;                 // names of inputs and initializers
  std::unordered_map<std::string, ValueId> initializers_;  // once outputs are read
  std::set<std::pair<dag::OutputRole, ValueId>> updated_;
  size_t constants_size_ = 0;
  int64_t elements_ = 0;
};

}  // namespace

Status get(const wire::Graph& from, dag::Graph& to) {
  if (static_cast<size_t>(from.ops_size()) > kOpsMax || static_cast<size_t>(from.outputs_size()) > kListMax)
    return fail(ErrorCode::OutOfRange, "graph: more than 100,000 ops or outputs");
  auto kinds = look_up<OpKind>(from.op_kinds(), dag::kOpKindCount, "op kind");
  if (!kinds) return fail(kinds.error().within("graph"));
  auto attributes = look_up<Attr>(from.attribute_names(), dag::kAttributeCount, "attribute");
  if (!attributes) return fail(attributes.error().within("graph"));
  WEFT_TRY(to, GraphReader(from, std::move(*kinds), std::move(*attributes)).run());
  return {};
}

}  // namespace weft::proto
