#include "peer/backend/cuda/cudnn_notes.h"

#include <array>
#include <span>

namespace weft::peer::cuda {
namespace {

void add_numerical(EngineNotes& notes, cudnnBackendNumericalNote_t note, Arithmetic arithmetic) {
  switch (note) {
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
      notes.tensor_cores = true;
      return notes.add("tensor-cores", arithmetic != Arithmetic::F32);
    case CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP:
      return;
    case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
      return notes.add("nondeterministic", false);
    case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
      return notes.add("down-converts", false);
    case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
      return notes.add("reduced-sums", false);
    case CUDNN_NUMERICAL_NOTE_FFT:
      return notes.add("fft", arithmetic == Arithmetic::F32);
    case CUDNN_NUMERICAL_NOTE_WINOGRAD:
      return notes.add("winograd", false);
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
      return notes.add("tile-4x4", false);
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
      return notes.add("tile-6x6", false);
    case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
      return notes.add("tile-13x13", false);
    case CUDNN_NUMERICAL_NOTE_TYPE_COUNT:
    default:
      return notes.add("numerics-" + std::to_string(note), false);  // what a newer library may come to say
  }
}
// Engines that stand on another library follow its version too, and are not there without a device.
void add_behavior(EngineNotes& notes, cudnnBackendBehaviorNote_t note) {
  if (note == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) {
    notes.compiled_at_run_time = true;
    notes.add("compiled-at-run-time", false);
  }
  if (note == CUDNN_BEHAVIOR_NOTE_CUBLASLT_DEPENDENCY) notes.add("cublaslt", false);
}
}  // namespace

Result<EngineNotes> notes_of(const CudnnDescriptor& engine, Arithmetic arithmetic) {
  EngineNotes notes;
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> numerical{};
  WEFT_TRY(size_t count, get<CUDNN_TYPE_NUMERICAL_NOTE>(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                        std::span<cudnnBackendNumericalNote_t>(numerical)));
  for (size_t i = 0; i < count; ++i) add_numerical(notes, numerical[i], arithmetic);
  std::array<cudnnBackendBehaviorNote_t, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT> behavior{};
  WEFT_TRY(count, get<CUDNN_TYPE_BEHAVIOR_NOTE>(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE,
                                                std::span<cudnnBackendBehaviorNote_t>(behavior)));
  for (size_t i = 0; i < count; ++i) add_behavior(notes, behavior[i]);
  return notes;
}

}  // namespace weft::peer::cuda
