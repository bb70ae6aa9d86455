// The adapters of a job (dag/passes/adapt.h): put into its graph, begun, and merged into its model.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "configs/job.h"
#include "dag/made_value.h"
#include "dag/onnx/export.h"
#include "dag/onnx/import.h"
#include "dag/onnx/model.h"
#include "dag/passes/adapt.h"

namespace weft::train {

struct PlacedAdapter : dag::Adapter {
  std::string module{};  // what files of adapters call it
  bool operator==(const PlacedAdapter&) const = default;
};
using Adapters = std::vector<PlacedAdapter>;
struct AddedAdapters {
  Adapters adapters;
  std::map<std::string, dag::MadeValue> made;  // of their factors those that no file has
};

// Puts the job's adapters into the imported graph, as it is computed, and what they begin with into its
// weights, drawn by the job's seed, the factor's name and the element. What is not trained is of role Frozen
// then. Errors, with the place in the job file: NotFound, with names that are near, for a target that names
// nothing; what dag::adapt says; what reading a file of adapters says, and NotFound or InvalidArgument where
// a tensor of it is missing or of another shape.
Result<AddedAdapters> add_adapters(const configs::Job& job, const onnx::OnnxModel& model, bool trains,
                                   onnx::ImportedModel& imported);

// What a checkpoint belongs to beside its graph: the values of constants.
std::string describe(const Adapters& adapters);

// The model's own tensors as they are to be written: in place of factors the weights that they are merged
// into. Of `trained` and `base`, which it goes on to read, `base` has the adapters' weights; those in half
// precision are merged and handed on in F32. One weight is held at a time.
onnx::TrainedTensors merge_adapters(const Adapters& adapters, const onnx::TrainedTensors& base,
                                    const onnx::TrainedTensors& trained);
// Where a trained model is written, and how.
struct OutputPlace {
  std::filesystem::path output;
  configs::OutputForm form{};
  std::filesystem::path model_folder{};  // of the model's file, where form.links_base
};
// Writes the model with what was trained and the adapters merged: onnx::write_trained_tensors, or
// write_beside. A weight that the file keeps in fewer bits and that an adapter changes is whole in the files
// that are written: in form.merged, or its own type, or, where integers were read, in F16 if all numbers fit.
// OutOfRange where one does not fit what was asked for.
Result<onnx::WrittenFiles> write_merged(const onnx::OnnxModel& model, const Adapters& adapters,
                                        const onnx::TrainedTensors& base, const onnx::TrainedTensors& trained,
                                        const OutputPlace& place);
// The tensors of the model's file; one of them as it is, or as F32. Weights that it keeps in fewer bits are
// among them, as F32 and by their own names (dag/onnx/stored_weights.h).
onnx::TrainedTensors tensors_of(const onnx::OnnxModel& model);
// The tensors of `over`, and those of `under` that it has not.
onnx::TrainedTensors put_over(const onnx::TrainedTensors& under, const onnx::TrainedTensors& over);
Result<dag::Tensor> read_tensor(const onnx::TrainedTensors& tensors, const std::string& name);
Result<dag::Tensor> read_float(const onnx::TrainedTensors& tensors, const std::string& name);

}  // namespace weft::train
