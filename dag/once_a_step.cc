#include "dag/once_a_step.h"

#include <set>

namespace weft::dag {

std::vector<bool> once_a_step(const Graph& graph) {
  std::set<uint32_t> trained;
  for (const Initializer& initializer : graph.initializers())
    if (initializer.role == InitializerRole::Parameter &&
        graph.find_output(OutputRole::Gradient, initializer.name) != nullptr)
      trained.insert(initializer.value.index);
  std::vector<bool> once(graph.ops().size(), false);
  for (uint32_t i = 0; i < graph.ops().size(); ++i)
    once[i] = graph.ops()[i].kind == OpKind::RoundToHalf && trained.contains(graph.ops()[i].inputs[0].index);
  return once;
}

}  // namespace weft::dag
