#include "dag/passes/canonicalise.h"

#include "dag/autodiff.h"

namespace weft::dag {

Result<Graph> canonicalise(const Graph& graph, const OpTable& table) {
  Graph result = simplify_shapes(graph, table);
  result = fuse_layer_norm(prune(result, table), table);
  result = fuse_gelu(result, table);
  result = fuse_transposes(result, table);
  return prune(simplify_shapes(prune(result, table), table), table);
}

}  // namespace weft::dag
