#include "train/decoder.h"

#include <system_error>

#include "dag/onnx/decoder.h"
#include "dag/op_table.h"
#include "data/file.h"
#include "peer/backend/reference/reference_kernels.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "train/prepare.h"

namespace weft::train {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kContext = 1024;
constexpr int64_t kMaskBytesMax = int64_t{256} << 20;  // of a weight that a mask hangs on
constexpr uint64_t kConfigMax = uint64_t{16} << 20;    // bytes of a tokenizer_config.json

// The length that the file fixes, or else what is asked for.
Result<onnx::DecoderPorts> find_ports(const onnx::OnnxModel& model, int64_t context) {
  if (context > 0) return onnx::find_decoder(model, context);
  auto fixed = onnx::find_decoder(model, std::nullopt);
  if (fixed || fixed.error().code != ErrorCode::InvalidArgument) return fixed;
  return onnx::find_decoder(model, kContext);
}

// A table of positions or a mask may be shorter than the length that was taken.
Error with_length(Error error, int64_t length, const std::string& option) {
  error.message += "; the sequence was taken to have " + std::to_string(length) + " positions: " + option +
                   " says how many the model was made for";
  return error;
}

Result<dag::Tensor> read_whole(const onnx::OnnxModel& model, const std::string& name) {
  const auto known = model.weights().find(name);
  if (known == model.weights().end())
    return fail(ErrorCode::Unsupported,
                "a mask hangs on '" + name.substr(0, 128) + "', which is not in the file");
  if (known->second.spec().bytes().value > kMaskBytesMax)
    return fail(ErrorCode::ResourceExhausted,
                "a mask hangs on '" + name.substr(0, 128) + "', which takes more than " +
                    std::to_string(kMaskBytesMax >> 20) + " MiB: bind a shorter sequence");
  return model.read_whole(name);
}

Result<std::string> read_text(const fs::path& path, uint64_t bytes_max) {
  WEFT_TRY(const auto file, data::File::open(path));
  if (file->size() > bytes_max)
    return file->error(ErrorCode::OutOfRange, "more than " + std::to_string(bytes_max) + " bytes");
  std::string text(static_cast<size_t>(file->size()), '\0');
  WEFT_TRY_STATUS(file->read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

bool is_file(const fs::path& path) {
  std::error_code code;
  return fs::is_regular_file(path, code);
}

}  // namespace

Result<DecoderModel> import_decoder(const onnx::OnnxModel& model, int64_t context,
                                    const std::string& length_option) {
  WEFT_TRY(const onnx::DecoderPorts ports, find_ports(model, context));
  auto prepared = prepare_inference(model, onnx::import_options(ports, peer::evaluate_reference));
  if (!prepared) return fail(with_length(std::move(prepared).error(), ports.length, length_option));
  return DecoderModel{.graph = std::make_shared<const dag::Graph>(std::move(prepared->graph)),
                      .weights = std::move(prepared->weights),
                      .tokens = ports.tokens,
                      .logits = ports.logits,
                      .warnings = std::move(prepared->warnings)};
}

Result<std::shared_ptr<const dag::Incremental>> derive_decoder(const DecoderModel& decoder,
                                                               const onnx::OnnxModel& model) {
  dag::Weights read = decoder.weights;
  std::erase_if(read, [&](const auto& weight) { return !model.is_read(weight.first); });
  WEFT_TRY(
      dag::Incremental parts,
      dag::Incremental::derive(decoder.graph, dag::op_table(),
                               {.tokens = decoder.tokens,
                                .logits = decoder.logits,
                                .evaluate = peer::evaluate_reference,
                                .weights = &read,
                                .read = [&](const std::string& name) { return read_whole(model, name); }}));
  return std::make_shared<const dag::Incremental>(std::move(parts));
}

Result<ServedDecoder> open_decoder(const configs::Job& job, const onnx::OnnxModel& model) {
  const auto context = static_cast<int64_t>(job.serve->context);
  auto decoder = import_decoder(model, context, "`serve.context`");
  if (!decoder) return fail(job.error(decoder.error().code, "model", decoder.error().message));
  auto parts = derive_decoder(*decoder, model);
  if (!parts && parts.error().code != ErrorCode::Unsupported)
    return fail(job.error(parts.error().code, "model", parts.error().message));
  if (!parts)
    return fail(job.error(ErrorCode::Unsupported, "model",
                          "no caches can be made of this model: " + parts.error().message +
                              ". It is served by `weft serve` on one machine, by whole windows"));
  return ServedDecoder{std::move(*decoder), std::move(*parts)};
}

int64_t draft_context(const onnx::OnnxModel& draft, int64_t served) {
  return onnx::find_decoder(draft, std::nullopt) ? 0 : served;
}

Result<std::shared_ptr<const ServedDecoder>> open_draft(const configs::Job& job, const onnx::OnnxModel& draft,
                                                        const ServedDecoder& served) {
  const auto refuse = [&](const Error& error) {
    return fail(job.error(error.code, "serve.draft", error.message));
  };
  auto decoder = import_decoder(draft, draft_context(draft, served.parts->context()), "`serve.context`");
  if (!decoder) return refuse(decoder.error());
  auto parts = derive_decoder(*decoder, draft);
  if (!parts) return refuse(parts.error().within("no caches can be made of this model"));
  const int64_t tokens = (*parts)->logits().width, wanted = served.parts->logits().width;
  if (tokens != wanted)
    return refuse({ErrorCode::InvalidArgument, "it has " + std::to_string(tokens) +
                                                   " tokens, and the model that it guesses for " +
                                                   std::to_string(wanted)});
  if (const int64_t length = (*parts)->context(); length < served.parts->context())
    decoder->warnings.push_back("the draft has " + std::to_string(length) +
                                " positions: behind them nothing is guessed");
  return std::make_shared<const ServedDecoder>(ServedDecoder{std::move(*decoder), std::move(*parts)});
}

Result<DecoderText> find_text(const configs::Job& job) {
  DecoderText found{job.serve->tokenizer, job.serve->chat_template};
  if (!found.chat_template.empty()) {
    const auto known = text::chat_template_from(found.chat_template);
    if (!known) return fail(job.error(known.error().code, "serve.chat_template", known.error().message));
  }
  const fs::path beside = job.model.parent_path() / "tokenizer.json";
  if (found.tokenizer.empty() && is_file(beside)) found.tokenizer = beside;
  const fs::path config = found.tokenizer.parent_path() / "tokenizer_config.json";
  if (found.tokenizer.empty() || !found.chat_template.empty() || !is_file(config)) return found;
  WEFT_TRY(const std::string text, read_text(config, kConfigMax));
  if (const auto known = text::recognize_chat_template(text)) found.chat_template = to_string(*known);
  return found;
}

Result<std::string> read_tokenizer(const fs::path& path) { return read_text(path, kTokenizerMax); }

Status check_text(const configs::Job& job, const std::string* tokenizer_json, int64_t vocabulary) {
  const auto wrong = [&](const Error& error) {
    return fail(job.error(error.code, "serve.tokenizer", error.message));
  };
  if (!job.serve->chat_template.empty()) {
    const auto known = text::chat_template_from(job.serve->chat_template);
    if (!known) return fail(job.error(known.error().code, "serve.chat_template", known.error().message));
  }
  if (tokenizer_json == nullptr) {
    if (vocabulary == 256) return {};
    return wrong({ErrorCode::InvalidArgument, "the model has " + std::to_string(vocabulary) +
                                                  " tokens and no tokenizer.json lies beside it: name one"});
  }
  const auto tokenizer = text::parse_tokenizer_json(*tokenizer_json);
  if (!tokenizer) return wrong(tokenizer.error());
  if (static_cast<int64_t>(tokenizer->vocabulary_size()) > vocabulary)
    return wrong({ErrorCode::InvalidArgument, "it has " + std::to_string(tokenizer->vocabulary_size()) +
                                                  " tokens, the model only " + std::to_string(vocabulary)});
  return {};
}

}  // namespace weft::train
