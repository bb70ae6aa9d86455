#include "dag/incremental/folder.h"

#include <set>

namespace weft::dag::incremental {
namespace {

constexpr int64_t kKeptBytesMax = int64_t{1} << 28;

}  // namespace

Result<Tensor> Folder::fold(ValueId value) {
  made_.clear();
  readers_.clear();
  for (const uint32_t op : find_wanted(value)) {
    WEFT_TRY_STATUS(compute(graph_.ops()[op]));
    let_go(graph_.ops()[op]);
  }
  const auto known = kept_.find(value);
  Tensor result = known == kept_.end() ? made_.at(value) : known->second;
  if (known == kept_.end()) keep(value, result);
  return result;
}

std::vector<uint32_t> Folder::find_wanted(ValueId value) {
  std::set<uint32_t> wanted;
  std::vector<ValueId> left{value};
  while (!left.empty()) {
    const ValueId at = left.back();
    left.pop_back();
    const uint32_t op = graph_.value(at).producer.index;
    if (kept_.contains(at) || !wanted.insert(op).second) continue;
    for (const ValueId input : graph_.ops()[op].inputs) {
      if (!input.valid()) continue;
      ++readers_[input];
      left.push_back(input);
    }
  }
  ++readers_[value];
  return {wanted.begin(), wanted.end()};
}

Result<Tensor> Folder::leaf(const Op& op) {
  if (op.kind == OpKind::Constant) return graph_.constant(op);
  const std::string& name = op.attributes.get_string(Attr::Name);
  read_.insert(name);
  WEFT_TRY(Tensor tensor, weight(name));
  if (tensor.spec() == graph_.spec(op.outputs[0])) return tensor;
  return fail(ErrorCode::InvalidArgument, "the value of '" + name.substr(0, 128) + "' is " +
                                              to_string(tensor.spec()) + ", the model has " +
                                              to_string(graph_.spec(op.outputs[0])));
}

Result<Tensor> Folder::weight(const std::string& name) const {
  if (options_.weights != nullptr)
    if (const auto found = options_.weights->find(name); found != options_.weights->end())
      return found->second;
  if (options_.read) return options_.read(name);
  return fail(ErrorCode::Unsupported,
              "a mask hangs on '" + name.substr(0, 128) + "', of which no value is known");
}

Status Folder::compute(const Op& op) {
  if (op.inputs.empty()) {
    WEFT_TRY(made_[op.outputs[0]], leaf(op));
    return {};
  }
  std::vector<const Tensor*> inputs;
  for (const ValueId input : op.inputs) {
    const auto kept = kept_.find(input);
    inputs.push_back(!input.valid() ? nullptr : kept == kept_.end() ? &made_.at(input) : &kept->second);
  }
  std::vector<TensorSpec> outputs;
  for (const ValueId output : op.outputs) {
    outputs.push_back(graph_.spec(output));
    elements_ += outputs.back().element_count();
  }
  if (elements_ > options_.folded_elements_max)
    return fail(ErrorCode::ResourceExhausted, "the masks of the model take more than " +
                                                  std::to_string(options_.folded_elements_max) +
                                                  " numbers to compute: bind a shorter sequence");
  WEFT_TRY(std::vector<Tensor> results, options_.evaluate(op, inputs, outputs));
  for (size_t i = 0; i < results.size(); ++i) made_[op.outputs[i]] = std::move(results[i]);
  return {};
}

void Folder::let_go(const Op& op) {
  for (const ValueId input : op.inputs)
    if (input.valid() && --readers_[input] == 0) made_.erase(input);
}

void Folder::keep(ValueId value, const Tensor& tensor) {
  const int64_t bytes = tensor.spec().bytes().value;
  if (kept_bytes_ + bytes > kKeptBytesMax) kept_.clear(), kept_bytes_ = 0;
  kept_bytes_ += bytes;
  kept_.emplace(value, tensor);
}

}  // namespace weft::dag::incremental
