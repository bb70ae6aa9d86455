// A graph on a backend, group by group, every value in memory of its own; says in words what goes wrong: on a
// device that is tried for the first time that is not the caller's mistake.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/graph.h"
#include "peer/backend/backend.h"

namespace weft::test {

class GraphOn {
 public:
  // The kernels, without compiling them one by one: Backend::prepare() after the last. Both outlive this.
  static Result<GraphOn> make(peer::Backend& backend, const dag::Graph& graph,
                              const peer::Precision& precision = {});

  // `inputs` in the order of graph.inputs(); the graph has no initializers. The values of `wanted`.
  Result<std::vector<dag::Tensor>> run(const std::vector<dag::Tensor>& inputs,
                                       const std::vector<dag::ValueId>& wanted,
                                       const peer::StepContext& context);
  std::string implementation() const {
    return std::string(kernels_.back()->implementation());
  }  // of the last group

 private:
  GraphOn(peer::Backend& backend, const dag::Graph& graph) : backend_(&backend), graph_(&graph) {}

  peer::Backend* backend_;
  const dag::Graph* graph_;
  std::vector<peer::GroupSignature> groups_;
  std::vector<std::unique_ptr<peer::Kernel>> kernels_;
};

}  // namespace weft::test
