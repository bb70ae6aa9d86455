// Programs of stages that compute nothing: what a plan says that a stage trains, loses and predicts.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compress/codec.h"
#include "dag/graph.h"
#include "dag/op_table.h"
#include "proto/messages.h"

namespace weft::test {

struct ProgramParts {
  std::vector<proto::TensorReference> trained{};  // values of initializers
  size_t losses = 0, corrects = 0, counteds = 0;  // scalar outputs of these roles
  std::string prediction{};                       // the name of a scalar that it predicts; empty: none
  std::string codec{};                            // of one tensor to the next stage; empty: it sends none
};

inline proto::StageProgram make_program(proto::ProgramKind kind, const ProgramParts& parts) {
  dag::GraphBuilder builder(dag::op_table());
  const dag::ValueId x = builder.input("x", {dag::DType::F32, {25'600}});
  const dag::ValueId number = builder.input("number", {dag::DType::F32, {}});
  for (const proto::TensorReference& tensor : parts.trained)
    builder.output(tensor.key.name,
                   builder.initializer(tensor.key.name, tensor.spec, dag::InitializerRole::Parameter),
                   dag::OutputRole::Gradient);
  const auto add = [&](size_t count, const char* name, dag::OutputRole role) {
    for (size_t i = 0; i < count; ++i) builder.output(name, number, role);
  };
  add(parts.losses, "loss", dag::OutputRole::Loss);
  add(parts.corrects, "correct", dag::OutputRole::Correct);
  add(parts.counteds, "counted", dag::OutputRole::Counted);
  if (!parts.prediction.empty()) builder.output(parts.prediction, number, dag::OutputRole::Prediction);
  proto::StageProgram program{.kind = kind};
  program.graph = std::make_shared<const dag::Graph>(builder.finish());
  program.segment_of_op.assign(program.graph->ops().size(), 0);
  if (!parts.codec.empty())
    program.sends.push_back(
        {.edge = 0, .value = x, .stage = 1, .codec = compress::parse(parts.codec).value()});
  return program;
}

}  // namespace weft::test
