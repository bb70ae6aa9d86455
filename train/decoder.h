// A language model that is to be served: the file imported as a causal graph over a whole sequence, and that
// graph taken apart into parts that compute a few positions (dag/incremental).
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "configs/job.h"
#include "dag/graph.h"
#include "dag/incremental/incremental.h"
#include "dag/onnx/import.h"
#include "dag/onnx/model.h"
#include "text/tokenizer.h"

namespace weft::train {

struct DecoderModel {
  std::shared_ptr<const dag::Graph> graph;
  dag::Weights weights;  // of its initializers; large ones may not have been read
  std::string tokens, logits;
  std::vector<std::string> warnings;
};

// `context`: of the sequence; 0: what the file fixes, or else 1024. Errors: Unsupported for what is no
// language model; of the import, where the length was taken with how `length_option` would say another.
Result<DecoderModel> import_decoder(const onnx::OnnxModel& model, int64_t context,
                                    const std::string& length_option);

// Errors: of dag::Incremental::derive.
Result<std::shared_ptr<const dag::Incremental>> derive_decoder(const DecoderModel& decoder,
                                                               const onnx::OnnxModel& model);

// Both, of a job that serves. Errors: with the job's place; a model that cannot be taken apart is
// Unsupported, with the op's name, the reason and what serves it all the same.
struct ServedDecoder {
  DecoderModel model;
  std::shared_ptr<const dag::Incremental> parts;
  std::shared_ptr<const ServedDecoder> draft{};  // where a model guesses what it draws
};
Result<ServedDecoder> open_decoder(const configs::Job& job, const onnx::OnnxModel& model);
// The model that guesses for `served`: with the length that it fixes, else that of `served`. Errors: as
// open_decoder; InvalidArgument for other tokens.
Result<std::shared_ptr<const ServedDecoder>> open_draft(const configs::Job& job, const onnx::OnnxModel& draft,
                                                        const ServedDecoder& served);

// The length of a model that guesses for one of `served` positions, as import_decoder takes it: what it
// fixes, else that one's.
int64_t draft_context(const onnx::OnnxModel& draft, int64_t served);

// What text a served model speaks, as a file beside it says where the job does not.
struct DecoderText {
  std::filesystem::path tokenizer;  // empty: bytes
  std::string chat_template;        // by name; empty: it does not chat
};
// Looks beside the model and the tokenizer. Errors: NotFound for a name of a template that there is not.
Result<DecoderText> find_text(const configs::Job& job);
inline constexpr uint64_t kTokenizerMax = text::kTokenizerFileMax;  // bytes
Result<std::string> read_tokenizer(const std::filesystem::path& path);
// That `tokenizer_json` (nothing: bytes) goes with a model of so many tokens. Errors: InvalidArgument, with
// the job's place; what reading it says.
Status check_text(const configs::Job& job, const std::string* tokenizer_json, int64_t vocabulary);

}  // namespace weft::train
