#include "dag/onnx/import.h"

#include <algorithm>
#include <cmath>

#include "dag/onnx/analysis.h"
#include "dag/onnx/lowering.h"
#include "dag/onnx/structure.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {
using dag::InitializerRole;

class Import {
 public:
  Import(const OnnxModel& model, const ImportOptions& options, const dag::OpTable& table)
      : model_(model.structure()),
        graph_(model_.proto.graph()),
        options_(options),
        emitter_(options, table) {}

  Result<ImportedModel> run() {
    WEFT_TRY_STATUS(check());
    WEFT_TRY_STATUS(add_inputs());
    WEFT_TRY_STATUS(add_initializers());
    ImportState state{emitter_, model_.opset, uses_, {}, 0};
    for (const auto& node : graph_.node()) WEFT_TRY_STATUS(lower(state, node));
    WEFT_TRY_STATUS(add_outputs(state));
    return finish();
  }

 private:
  Status check() {
    if (!options_.evaluate) return fail(ErrorCode::InvalidArgument, "import_model needs an evaluator");
    WEFT_TRY_STATUS(check_value_types());
    WEFT_TRY_STATUS(check_supported(graph_));
    if (model_.opset < kOpsetMin || model_.opset > kOpsetMax)
      return fail(ErrorCode::Unsupported, "the model uses operator set " + std::to_string(model_.opset) +
                                              "; supported are " + std::to_string(kOpsetMin) + " to " +
                                              std::to_string(kOpsetMax) + " (export with opset_version=17)");
    WEFT_TRY_STATUS(check_well_formed(model_, options_.limits));
    uses_ = count_uses(graph_);
    reached_ = reached_by_gradient(graph_);
    statistics_ = running_statistics(graph_);
    for (const auto& [name, tensor] : model_.weights) WEFT_TRY_STATUS(check_no_nan(name, tensor));
    if (options_.training) WEFT_TRY_STATUS(check_no_merged_parameters(model_, reached_));
    return {};
  }

  Status check_value_types() const {
    for (const auto* ports : {&graph_.input(), &graph_.output()})
      for (const auto& port : *ports)
        if (port.has_type() && !port.type().has_tensor_type() &&
            port.type().value_case() != pb::TypeProto::VALUE_NOT_SET)
          return fail(ErrorCode::Unsupported,
                      "'" + port.name().substr(0, 128) +
                          "' is not a tensor but a sequence, map, optional or sparse value");
    return {};
  }

  static Status check_no_nan(const std::string& name, const Tensor& tensor) {
    if (!is_float(tensor.dtype())) return {};
    const auto refuse = [&](size_t i) {
      return fail(ErrorCode::InvalidArgument,
                  "initializer '" + name.substr(0, 128) + "' has a NaN at element " + std::to_string(i));
    };
    if (tensor.dtype() == DType::F32) {  // without a copy: weights are large
      const auto values = tensor.as<float>();
      for (size_t i = 0; i < values.size(); ++i)
        if (std::isnan(values[i])) return refuse(i);
      return {};
    }
    const auto values = to_doubles(tensor);
    for (size_t i = 0; i < values.size(); ++i)
      if (std::isnan(values[i])) return refuse(i);
    return {};
  }

  // ---- inputs ----

  Result<Shape> input_shape(const pb::ValueInfoProto& info) {
    const std::string who = "input '" + info.name().substr(0, 128) + "'";
    if (const auto given = options_.input_shapes.find(info.name()); given != options_.input_shapes.end())
      return given->second;
    const auto& type = info.type().tensor_type();
    if (!type.has_shape())
      return fail(ErrorCode::InvalidArgument, who + " has no shape in the file; give it one");
    Shape shape;
    for (const auto& dim : type.shape().dim()) {
      if (dim.has_dim_value()) {
        shape.push_back(dim.dim_value());
        continue;
      }
      const std::string& symbol = dim.dim_param();
      if (const auto size = options_.sizes.find(symbol); !symbol.empty() && size != options_.sizes.end()) {
        shape.push_back(size->second);
      } else if (const auto bound = bound_symbols_.find(symbol);
                 !symbol.empty() && bound != bound_symbols_.end()) {
        shape.push_back(bound->second);
      } else if (shape.empty() && options_.batch) {
        shape.push_back(*options_.batch);
        if (!symbol.empty()) bound_symbols_[symbol] = *options_.batch;
      } else {
        return fail(ErrorCode::InvalidArgument,
                    who + ": dim " + std::to_string(shape.size()) + " is " +
                        (symbol.empty() ? "unknown" : "the symbol '" + symbol.substr(0, 128) + "'") +
                        " and nothing says how large it is; export the model with that dim fixed");
      }
    }
    return shape;
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
      WEFT_TRY(Shape shape, input_shape(info));
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
      items_[info.name()] = {spec, id, std::nullopt, {}};
    }
    return {};
  }

  // ---- initializers ----

  bool is_frozen(const std::string& name) const {
    return std::any_of(options_.freeze.begin(), options_.freeze.end(),
                       [&](const std::string& pattern) { return matches_glob(pattern, name); });
  }

  // In the file's order, which becomes the order of parameters. What no gradient reaches is a known value,
  // and enters the graph only if something that is not folded reads it.
  Status add_initializers() {
    for (const auto& proto : graph_.initializer()) {
      const std::string& name = proto.name();
      const Tensor& tensor = model_.weights.find(name)->second;
      Item item{tensor.spec(), {}, std::nullopt, name};
      if (!uses_.contains(name)) {
        continue;
      } else if (statistics_.contains(name)) {
        item.id = emitter_.builder().initializer(name, tensor.spec(), InitializerRole::RunningStatistic);
      } else if (is_float(tensor.dtype()) && reached_.contains(name)) {
        const auto role = is_frozen(name) ? InitializerRole::Frozen : InitializerRole::Parameter;
        item.id = emitter_.builder().initializer(name, tensor.spec(), role);
      } else {
        item.known = tensor;
      }
      items_[name] = std::move(item);
    }
    return {};
  }

  // ---- nodes ----

  Status lower(ImportState& state, const pb::NodeProto& node) {
    Items inputs;
    std::vector<bool> present;
    for (const auto& name : node.input()) {
      present.push_back(!name.empty());
      inputs.push_back(name.empty() ? Item{} : items_.at(name));
    }
    NodeContext context(state, node, std::move(inputs), std::move(present));
    const LowerRow* row = find_lowering(node.domain(), node.op_type());
    WEFT_CHECK(row != nullptr);
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

  // ---- outputs ----

  Status add_outputs(ImportState& state) {
    for (const auto& output : graph_.output()) {
      Item& item = items_.at(output.name());
      if (const auto& type = output.type().tensor_type(); type.elem_type() != 0) {
        const auto dtype = dtype_from_onnx(type.elem_type());
        if (!dtype) return fail(dtype.error().within("output '" + output.name().substr(0, 128) + "'"));
        if (*dtype != item.dtype())
          return fail(ErrorCode::InvalidArgument, "output '" + output.name().substr(0, 128) +
                                                      "' is declared " + std::string(to_string(*dtype)) +
                                                      " but computed as " +
                                                      std::string(to_string(item.dtype())));
      }
      emitter_.builder().output(output.name(), emitter_.materialise(item), dag::OutputRole::Prediction);
    }
    for (auto& [name, item] : state.running)
      emitter_.builder().output(name, emitter_.materialise(item), dag::OutputRole::StateUpdate);
    return {};
  }

  Result<ImportedModel> finish() {
    ImportedModel imported{
        .graph = emitter_.builder().finish(), .weights = {}, .warnings = {}, .op_counts = count_ops(graph_)};
    bool renamed = false;
    for (const auto& initializer : imported.graph.initializers()) {
      const Tensor& tensor = model_.weights.find(initializer.name)->second;
      imported.weights.emplace(initializer.name, tensor);
      if (initializer.role != InitializerRole::Parameter) continue;
      renamed = renamed || initializer.name.starts_with("onnx::");
      if (const std::string why = table_or_mask(initializer.name, tensor); !why.empty())
        imported.warnings.push_back("'" + initializer.name + "' " + to_string(tensor.spec()) +
                                    " will be trained but looks like a table or a mask: " + why +
                                    "; freeze it unless it is a parameter (freeze: [\"" + initializer.name +
                                    "\"])");
    }
    if (options_.training && renamed)
      imported.warnings.push_back(
          "parameters have names like 'onnx::MatMul_12': the file was not exported in training mode, and "
          "the exporter renamed or transposed them");
    return imported;
  }

  const OnnxModel::Structure& model_;
  const pb::GraphProto& graph_;
  const ImportOptions& options_;
  Emitter emitter_;
  std::unordered_map<std::string, int> uses_;
  std::unordered_set<std::string> reached_;
  std::set<std::string> statistics_;
  std::map<std::string, int64_t> bound_symbols_;
  std::unordered_map<std::string, Item> items_;
};

}  // namespace

Result<ImportedModel> import_model(const OnnxModel& model, const ImportOptions& options,
                                   const dag::OpTable& table) {
  WEFT_TRY_STATUS(check_freeze(model, options.freeze));
  return Import(model, options, table).run();
}

}  // namespace weft::onnx
