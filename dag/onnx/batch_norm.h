// Internal to dag/onnx: what is asked of BatchNormalization nodes before anything is lowered.
#pragma once

#include <set>
#include <string>

#include "dag/onnx/expand.h"
#include "dag/onnx/schema.h"
#include "dag/onnx/structure.h"

namespace weft::onnx {

bool is_batch_norm(const pb::NodeProto& node);
// Whether the node's own marks say that it normalises by the statistics of its batch.
bool has_training_form(const pb::NodeProto& node, int64_t opset);

// Instance normalisations that an exporter wrote as BatchNormalization in training form: a Reshape moves the
// samples into the channels before it, and another takes them out again. The batch's statistics are those of
// each sample; the running ones are of a layer that never had any. The names of what they return.
std::set<std::string> find_instance_norms(const OnnxModel::Structure& model);

// The same node as the InstanceNormalization that it is.
pb::NodeProto as_instance_norm(const pb::NodeProto& node);

// Puts them in place of the nodes that return `names`.
void replace_instance_norms(const std::set<std::string>& names, ExpandedGraph& graph);

}  // namespace weft::onnx
