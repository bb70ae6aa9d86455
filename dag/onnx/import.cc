#include "dag/onnx/import.h"

#include <algorithm>

#include "dag/onnx/analysis.h"
#include "dag/onnx/batch_axis.h"
#include "dag/onnx/batch_norm.h"
#include "dag/onnx/import_checks.h"
#include "dag/onnx/input_shapes.h"
#include "dag/onnx/lowering.h"
#include "dag/onnx/roles_of_graph.h"
#include "dag/onnx/structure.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {
using dag::InitializerRole;

bool has_open_batch(const pb::ValueInfoProto& info) {
  const auto& shape = info.type().tensor_type().shape();
  return shape.dim_size() > 0 && !shape.dim(0).has_dim_value();
}

class Import {
 public:
  Import(const OnnxModel& model, const ImportOptions& options, const dag::OpTable& table)
      : whole_(model),
        model_(model.structure()),
        graph_(model_.proto.graph()),
        options_(options),
        input_shapes_(model, options),
        emitter_(options, table) {
    const std::string symbol = batch_symbol(model);
    for (const auto& port : model.outputs()) prediction_axes_[port.name] = batch_axis(port, symbol);
  }

  Result<ImportedModel> run() {
    WEFT_TRY_STATUS(check());
    WEFT_TRY_STATUS(add_inputs());
    WEFT_TRY_STATUS(add_initializers());
    const HeldTensors held(model_);
    ImportState state{.emitter = emitter_,
                      .opset = model_.opset,
                      .use_counts = uses_,
                      .running = {},
                      .lower_body = {},
                      .unrolled_left = options_.limits.unrolled_node_count_max,
                      .held = held,
                      .kept = options_.keep_stored ? stored_weights(whole_) : StoredWeights(),
                      .held_statistics = held_statistics_};
    state.lower_body = [&](const pb::GraphProto& body, Items inputs) {
      return lower_body(state, body, std::move(inputs));
    };
    state.batch = open_batch_;
    for (const pb::NodeProto* node : expanded_.nodes) {
      if (is_taken_constant(*node)) continue;
      if (Status lowered = lower(state, *node); !lowered) return with_cure(state, std::move(lowered).error());
    }
    WEFT_TRY_STATUS(add_outputs(state));
    return finish(state);
  }

 private:
  Status check() {
    if (!options_.evaluate) return fail(ErrorCode::InvalidArgument, "import_model needs an evaluator");
    WEFT_TRY_STATUS(check_value_types(graph_));
    WEFT_TRY_STATUS(check_well_formed(model_, options_.limits));
    WEFT_TRY(expanded_, expand_functions(model_, options_.limits));
    WEFT_TRY_STATUS(check_supported(expanded_));
    WEFT_TRY_STATUS(check_opsets(expanded_, warnings_));
    replace_instance_norms(find_instance_norms(model_), expanded_);
    uses_ = count_uses(expanded_);
    for (const std::string& value : options_.read) ++uses_[value];
    if (options_.training) exported_constants(model_, &warnings_);
    WEFT_TRY_STATUS(decide_roles());
    WEFT_TRY_STATUS(check_no_nans());
    if (options_.training)
      WEFT_TRY_STATUS(
          check_no_merged_parameters(model_, expanded_, reached_by_gradient(expanded_, options_.read)));
    return {};
  }

  Status decide_roles() {
    const RoleTable* decided = options_.roles ? &*options_.roles : roles_of(whole_);
    if (decided) {
      WEFT_TRY_STATUS(check_roles(whole_, *decided));
      WEFT_TRY_STATUS(check_statistics(model_, expanded_, *decided));
      roles_ = *decided;
    } else {
      const RoleOptions options{
          .train = options_.train, .freeze = options_.freeze, .spare = options_.spare, .read = options_.read};
      WEFT_TRY(roles_, roles_of_graph(model_, expanded_, options, look_at(whole_)));
    }
    is_decided_ = decided != nullptr;
    for (const TensorRow& row : roles_) {
      row_of_.emplace(row.name, &row);
      if (row.role == TensorRole::Statistic && row.frozen) held_statistics_.insert(row.name);
    }
    return {};
  }

  // Numbers of a formula in Constant nodes may be what they want.
  Status check_no_nans() const {
    for (const auto& [name, tensor] : model_.weights) {
      const auto row = row_of_.find(name);
      const bool number = model_.constants.contains(name) && row != row_of_.end() &&
                          row->second->role == TensorRole::Constant;
      if (!number) WEFT_TRY_STATUS(check_no_nan(name, tensor));
    }
    return {};
  }

  Status check_no_nan(const std::string& name, const Tensor& tensor) const {
    const std::optional<int64_t> at = is_read(name) ? first_nan(tensor) : nan_of_unread(whole_, name);
    if (!at) return {};
    return fail(ErrorCode::InvalidArgument,
                "initializer '" + name.substr(0, 128) + "' has a NaN at element " + std::to_string(*at));
  }

  // ---- inputs ----

  // From the graph's shape, with the batch first, to the file's.
  Result<Item> as_in_file(const std::string& name, Item item) {
    const auto axis = static_cast<int64_t>(input_shapes_.batch_axis_of(name));
    if (!options_.batch_first || axis == 0 || axis >= item.rank()) return item;
    Ints perm;
    for (int64_t i = 0; i < item.rank(); ++i) perm.push_back(i < axis ? i + 1 : i == axis ? 0 : i);
    WEFT_TRY(Items moved, emitter_.emit_all(OpKind::Transpose, {std::move(item)}, {{Attr::Perm, perm}},
                                            name + " as the model has it"));
    return std::move(moved.front());
  }

  Result<Item> with_batch_first(const std::string& name, Item item) {
    const auto axis = static_cast<int64_t>(prediction_axes_.at(name));
    if (!options_.batch_first || axis == 0 || axis >= item.rank()) return item;
    Ints perm{axis};
    for (int64_t i = 0; i < item.rank(); ++i)
      if (i != axis) perm.push_back(i);
    WEFT_TRY(Items moved, emitter_.emit_all(OpKind::Transpose, {std::move(item)}, {{Attr::Perm, perm}},
                                            name + " by samples"));
    return std::move(moved.front());
  }

  Status add_inputs() {
    for (const auto& info : graph_.input()) {
      if (model_.weights.contains(info.name())) continue;  // files of IR version 3 list initializers here too
      const auto within = [&](const Error& error) {
        return fail(error.within("input '" + info.name().substr(0, 128) + "'"));
      };
      const auto dtype = dtype_from_onnx(info.type().tensor_type().elem_type());
      if (!dtype) return within(dtype.error());
      if (const auto bound = options_.bound_inputs.find(info.name()); bound != options_.bound_inputs.end()) {
        if (bound->second.dtype() != *dtype)
          return within({ErrorCode::InvalidArgument, "its value has another type"});
        items_[info.name()] = emitter_.constant(bound->second);
        continue;
      }
      WEFT_TRY(Shape shape, input_shapes_.of(info));
      if (has_open_batch(info) && !shape.empty()) open_batch_ = shape[0];
      if (static_cast<int>(shape.size()) > options_.limits.rank_max)
        return within({ErrorCode::OutOfRange, "it has too many dims"});
      const auto count = dag::checked_element_count(shape);
      if (!count) return within(count.error());
      TensorSpec spec{*dtype, std::move(shape)};
      if (std::any_of(spec.shape.begin(), spec.shape.end(),
                      [](int64_t d) { return d > dag::kElementCountMax; }) ||
          spec.bytes().value > options_.limits.value_bytes_max)
        return within({ErrorCode::ResourceExhausted, to_string(spec) + " is larger than any value may be"});
      const ValueId id = emitter_.builder().input(info.name(), spec);
      WEFT_TRY(items_[info.name()], as_in_file(info.name(), {spec, id, std::nullopt, {}}));
    }
    return {};
  }

  // ---- initializers ----

  bool is_read(const std::string& name) const { return !model_.unread.contains(name); }

  // In the file's order, which becomes the order of parameters; Constant nodes after them. What is constant
  // is a known value, and enters the graph only if something that is not folded reads it; unless it is large:
  // then its values are nothing to compute with now, whether or not they were read, for all who import the
  // model are to make the same graph of it.
  Status add_initializers() {
    for (const auto& proto : graph_.initializer()) {
      const std::string& name = proto.name();
      if (!uses_.contains(name)) continue;
      const Tensor& tensor = model_.weights.find(name)->second;
      Item item{tensor.spec(), {}, std::nullopt, name};
      item.four_bits = is_four_bit(proto);
      if (is_packed(proto, tensor.spec()))
        item.packed = true;
      else if (const auto role = role_of(name))
        item.id = emitter_.builder().initializer(name, tensor.spec(), *role);
      else if (is_read(name) && tensor.spec().bytes().value <= options_.limits.known_bytes_max)
        item.known = tensor;
      else
        item.id = emitter_.builder().initializer(name, tensor.spec(), InitializerRole::Buffer);
      items_[name] = std::move(item);
    }
    for (const auto& node : graph_.node()) {
      if (!is_taken_constant(node) || !uses_.contains(node.output(0))) continue;
      const std::string& name = node.output(0);
      const Tensor& tensor = model_.weights.find(name)->second;
      const auto role = role_of(name);
      items_[name] = role ? Item{tensor.spec(), emitter_.builder().initializer(name, tensor.spec(), *role),
                                 std::nullopt, name}
                          : emitter_.constant(tensor);
    }
    return {};
  }

  // Nothing for a known value.
  std::optional<InitializerRole> role_of(const std::string& name) const {
    const auto row = row_of_.find(name);
    if (row == row_of_.end()) return std::nullopt;  // no float
    switch (row->second->role) {
      case TensorRole::Trained:
        return InitializerRole::Parameter;
      case TensorRole::Frozen:
        return InitializerRole::Frozen;
      case TensorRole::Statistic:
        return row->second->frozen ? InitializerRole::Frozen : InitializerRole::RunningStatistic;
      case TensorRole::Constant:
        return std::nullopt;
    }
    return std::nullopt;
  }

  bool is_taken_constant(const pb::NodeProto& node) const {
    return node.op_type() == "Constant" && node.output_size() == 1 &&
           model_.constants.contains(node.output(0));
  }

  // ---- nodes ----

  Result<Item> find(const std::string& name) const {
    const auto found = items_.find(name);
    if (found == items_.end())
      return fail(ErrorCode::InvalidArgument, "'" + name.substr(0, 128) + "' is read but never computed");
    return found->second;
  }

  Status lower(ImportState& state, const pb::NodeProto& node) {
    Items inputs;
    std::vector<bool> present;
    for (const auto& name : node.input()) {
      present.push_back(!name.empty());
      if (name.empty()) {
        inputs.emplace_back();
        continue;
      }
      WEFT_TRY(Item item, find(name));
      inputs.push_back(std::move(item));
    }
    state.opset = expanded_.opset_of(node);
    NodeContext context(state, node, std::move(inputs), std::move(present));
    const LowerRow* row = find_lowering(node.domain(), node.op_type());
    WEFT_CHECK(row != nullptr);
    for (size_t i = 0; i < context.count(); ++i)
      if (context.in(i).sequence && !row->takes_sequences)
        return context.unsupported("operand " + std::to_string(i) + " is a sequence of tensors");
    for (size_t i = 0; i < context.count(); ++i)
      if (context.in(i).packed && !context.stored_weight())
        return context.unsupported("operand " + std::to_string(i) +
                                   " is a large matrix of four bits, which this operator cannot read so");
    WEFT_TRY_STATUS(row->lower(context));
    WEFT_TRY_STATUS(context.attribute_status());
    for (int i = 0; i < node.output_size(); ++i) {
      auto& item = context.outputs()[static_cast<size_t>(i)];
      if (node.output(i).empty()) continue;
      if (!item) {
        if (!context.wants(static_cast<size_t>(i))) continue;
        return context.invalid("its output " + std::to_string(i) + " is read, but it has no such output");
      }
      if (item->id.valid() && emitter_.builder().graph().value(item->id).name.empty())
        emitter_.builder().set_name(item->id, node.output(i));
      items_[node.output(i)] = std::move(*item);
    }
    return {};
  }

  // Shapes that do not fit may come of a batch that a node before wrote down.
  static tl::unexpected<Error> with_cure(const ImportState& state, Error error) {
    const bool said = error.message.find(state.literal_batch) != std::string::npos;
    if (error.code == ErrorCode::InvalidArgument && !said)
      error.message += "; perhaps " + state.literal_batch;
    return fail(std::move(error));
  }

  // ---- subgraphs: every name means one value, so a body's names stand beside the graph's ----

  Status spend_unrolled(ImportState& state, int64_t nodes) const {
    state.unrolled_left -= nodes;
    if (state.unrolled_left >= 0) return {};
    return fail(ErrorCode::ResourceExhausted, "the model's subgraphs become more than " +
                                                  std::to_string(options_.limits.unrolled_node_count_max) +
                                                  " nodes when written out");
  }

  Result<Items> lower_body(ImportState& state, const pb::GraphProto& body, Items inputs) {
    if (static_cast<int>(inputs.size()) != body.input_size())
      return fail(ErrorCode::InvalidArgument, "a subgraph has " + std::to_string(body.input_size()) +
                                                  " inputs, but is given " + std::to_string(inputs.size()));
    WEFT_TRY_STATUS(spend_unrolled(state, body.node_size() + 1));
    const int64_t made_before = emitter_.made_bytes();
    for (int i = 0; i < body.input_size(); ++i)
      items_[body.input(i).name()] = std::move(inputs[static_cast<size_t>(i)]);
    for (const auto& initializer : body.initializer()) {
      if (items_.contains(initializer.name())) continue;  // in an earlier iteration
      WEFT_TRY(Tensor tensor, tensor_from_proto(initializer, options_.limits));
      if (options_.training && is_float(tensor.dtype()) && tensor.element_count() > 1)
        warnings_.push_back("'" + initializer.name() + "' " + to_string(tensor.spec()) +
                            " belongs to a subgraph and is not trained; only initializers of the model's own "
                            "graph are");
      items_[initializer.name()] = emitter_.constant(std::move(tensor));
    }
    const int64_t opset = state.opset;
    for (const auto& node : body.node()) {
      const bool constant = node.input_size() == 0 && node.op_type() == "Constant" && node.output_size() == 1;
      if (constant && items_.contains(node.output(0))) continue;
      WEFT_TRY_STATUS(lower(state, node));
    }
    state.opset = opset;
    WEFT_TRY_STATUS(spend_unrolled(
        state, (emitter_.made_bytes() - made_before) / options_.limits.unrolled_bytes_per_node));
    Items outputs;
    for (const auto& output : body.output()) {
      WEFT_TRY(Item item, find(output.name()));
      outputs.push_back(std::move(item));
    }
    return outputs;
  }

  // ---- outputs ----

  Status add_outputs(ImportState& state) {
    const std::set<std::string> left_out(options_.left_out.begin(), options_.left_out.end());
    for (const auto& output : graph_.output()) {
      if (left_out.contains(output.name())) continue;
      WEFT_TRY(Item item, find(output.name()));
      if (item.sequence)
        return fail(ErrorCode::Unsupported,
                    "output '" + output.name().substr(0, 128) + "' is a sequence of tensors");
      if (const auto& type = output.type().tensor_type(); type.elem_type() != 0) {
        const auto dtype = dtype_from_onnx(type.elem_type());
        if (!dtype) return fail(dtype.error().within("output '" + output.name().substr(0, 128) + "'"));
        if (*dtype != item.dtype())
          return fail(ErrorCode::InvalidArgument, "output '" + output.name().substr(0, 128) +
                                                      "' is declared " + std::string(to_string(*dtype)) +
                                                      " but computed as " +
                                                      std::string(to_string(item.dtype())));
      }
      WEFT_TRY(item, with_batch_first(output.name(), std::move(item)));
      emitter_.builder().output(output.name(), emitter_.materialise(item), dag::OutputRole::Prediction);
    }
    WEFT_TRY_STATUS(add_read_values());
    for (auto& [name, item] : state.running)
      emitter_.builder().output(name, emitter_.materialise(item), dag::OutputRole::StateUpdate);
    return {};
  }

  Status add_read_values() {
    std::set<std::string> returned;
    for (const auto& output : graph_.output()) returned.insert(output.name());
    for (const std::string& name : options_.read) {
      const auto found = items_.find(name);
      if (found == items_.end() || found->second.absent() || !returned.insert(name).second) continue;
      if (found->second.sequence)
        return fail(ErrorCode::Unsupported, "'" + name.substr(0, 128) + "' is a sequence of tensors");
      emitter_.builder().output(name, emitter_.materialise(found->second), dag::OutputRole::Prediction);
    }
    return {};
  }

  Result<ImportedModel> finish(ImportState& state) {
    ImportedModel imported{.graph = emitter_.builder().finish(),
                           .weights = {},
                           .stored = std::move(state.stored),
                           .roles = roles_,
                           .warnings = warnings_,
                           .notes = {},
                           .op_counts = count_ops(expanded_)};
    bool renamed = false;
    const auto keep = [&](const std::string& name) {
      if (!name.empty()) imported.weights.emplace(name, model_.weights.find(name)->second);
    };
    for (const auto& [name, form] : imported.stored)
      for (const auto* part : {&form.numbers, &form.scale, &form.zero}) keep(part->name);
    for (const auto& initializer : imported.graph.initializers()) {
      if (!imported.stored.contains(initializer.name)) keep(initializer.name);
      renamed = renamed ||
                (initializer.role == InitializerRole::Parameter && initializer.name.starts_with("onnx::"));
    }
    if (options_.training && !is_decided_) {
      for (std::string& warning : role_warnings(whole_, roles_, look_at(whole_)))
        imported.warnings.push_back(std::move(warning));
      imported.notes = role_notes(whole_, roles_);
    }
    if (options_.training && renamed)
      imported.warnings.push_back(
          "parameters have names like 'onnx::MatMul_12': the file was not exported in training mode, and "
          "the exporter renamed or transposed them");
    return imported;
  }

  const OnnxModel& whole_;
  const OnnxModel::Structure& model_;
  const pb::GraphProto& graph_;
  const ImportOptions& options_;
  InputShapes input_shapes_;
  std::map<std::string, size_t> prediction_axes_;  // where the file has the batch of an output, by name
  Emitter emitter_;
  ExpandedGraph expanded_;
  std::vector<std::string> warnings_;
  std::unordered_map<std::string, int> uses_;
  RoleTable roles_;
  bool is_decided_ = false;  // by somebody else
  std::unordered_map<std::string, const TensorRow*> row_of_;
  std::set<std::string> held_statistics_;
  std::optional<int64_t> open_batch_;
  std::unordered_map<std::string, Item> items_;
};

}  // namespace

Result<ImportedModel> import_model(const OnnxModel& model, const ImportOptions& options,
                                   const dag::OpTable& table) {
  WEFT_TRY_STATUS(check_freeze(model, options.freeze));
  WEFT_TRY_STATUS(check_train(model, options.train));
  return Import(model, options, table).run();
}

}  // namespace weft::onnx
