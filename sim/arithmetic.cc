#include "sim/arithmetic.h"

#include <cstring>

namespace weft::sim {

namespace {
uint64_t hash_text(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return mix(hash);
}
}  // namespace

Digest digest_of(uint64_t value) {
  Digest digest;
  const uint64_t words[4] = {mix(value), value, mix(value + 1), mix(value + 2)};
  for (size_t i = 0; i < 32; ++i) digest.bytes[i] = static_cast<uint8_t>(words[i / 8] >> (8 * (i % 8)));
  return digest;
}

uint64_t value_of(const Digest& digest) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value |= uint64_t{digest.bytes[8 + i]} << (8 * i);
  return value;
}

uint64_t initial_value(uint64_t job_seed, const std::string& initializer) {
  return mix(job_seed ^ 0x696e6974, hash_text(initializer));
}

uint64_t data_value(uint64_t job_seed, proto::ProgramKind program, const std::string& input,
                    uint64_t sample_position) {
  return mix(mix(job_seed ^ static_cast<uint64_t>(program), hash_text(input)), sample_position);
}

TensorState updated(const TensorState& before, uint32_t slot_count, uint64_t gradient, double norm,
                    uint64_t step) {
  const uint64_t scale = std::bit_cast<uint64_t>(norm);
  TensorState after;
  for (uint32_t s = 0; s < slot_count; ++s)
    after.slots[s] = mix(mix(before.slots[s], gradient), mix(scale, s + 1));
  after.value = mix(mix(before.value, gradient), mix(scale, step));
  for (uint32_t s = 0; s < slot_count; ++s) after.value = mix(after.value, after.slots[s]);
  return after;
}

HashProgram::HashProgram(std::shared_ptr<const dag::Graph> graph, const std::vector<uint32_t>& segment_of_op,
                         uint32_t segment_count)
    : graph_(std::move(graph)), value_count_(graph_->values().size()), ops_of_segment_(segment_count) {
  for (uint32_t o = 0; o < graph_->ops().size(); ++o) {
    const dag::Op& op = graph_->ops()[o];
    if (op.kind == dag::OpKind::Constant)
      for (const dag::ValueId value : op.outputs)
        constants_.emplace_back(
            value.index, mix(0x636f6e7374, static_cast<uint64_t>(graph_->spec(value).element_count())));
    if (op.kind == dag::OpKind::Input || op.kind == dag::OpKind::Initializer ||
        op.kind == dag::OpKind::Constant)
      continue;
    Op compiled{.kind = mix(0x6f70, static_cast<uint64_t>(op.kind)),
                .first_operand = static_cast<uint32_t>(operands_.size()),
                .operands = 0,
                .first_output = static_cast<uint32_t>(results_.size()),
                .outputs = static_cast<uint32_t>(op.outputs.size())};
    for (const dag::ValueId input : op.inputs)
      if (input.valid()) {
        operands_.push_back(input.index);
        ++compiled.operands;
      }
    for (const dag::ValueId output : op.outputs) results_.push_back(output.index);
    ops_of_segment_[segment_of_op[o]].ops.push_back(compiled);
    ++ops_of_segment_[segment_of_op[o]].kernels;
  }
  for (const dag::GraphOutput& output : graph_->outputs())
    outputs_.push_back({output.role, output.value.index,
                        segment_of_op[graph_->value(output.value).producer.index], output.name});
  for (const dag::Initializer& initializer : graph_->initializers()) {
    initializers_.push_back(initializer.name);
    initializer_values_.push_back(initializer.value.index);
  }
}

void HashProgram::run(uint32_t segment, std::vector<uint64_t>& values) const {
  for (const auto& [value, constant] : constants_) values[value] = constant;
  for (const Op& op : ops_of_segment_[segment].ops) {
    uint64_t hash = op.kind;
    for (uint32_t i = 0; i < op.operands; ++i) hash = mix(hash ^ values[operands_[op.first_operand + i]]);
    for (uint32_t i = 0; i < op.outputs; ++i) values[results_[op.first_output + i]] = mix(hash + i);
  }
}

}  // namespace weft::sim
