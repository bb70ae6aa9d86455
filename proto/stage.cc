#include "proto/stage.h"

namespace weft::proto {

std::set<std::string_view> fixed_initializers(const AssignStage& assign) {
  std::set<std::string_view> fixed;
  for (const StageProgram& program : assign.programs)
    for (const dag::Initializer& initializer : program.graph->initializers())
      if (initializer.role == dag::InitializerRole::Frozen ||
          initializer.role == dag::InitializerRole::Buffer)
        fixed.insert(initializer.name);
  if (assign.serve)
    for (const TensorReference& tensor : assign.tensors) fixed.insert(tensor.key.name);
  return fixed;
}

}  // namespace weft::proto
