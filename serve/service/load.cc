#include "serve/service/load.h"

#include <algorithm>
#include <ctime>

#include "dag/onnx/model.h"
#include "serve/verify.h"
#include "storage/sha256.h"
#include "storage/text_file.h"
#include "train/decoder.h"

namespace weft::serve {
namespace {

namespace fs = std::filesystem;

// A decoder with caches, or by windows with the reason.
Result<std::unique_ptr<Decoder>> make_decoder(const train::DecoderModel& imported,
                                              const onnx::OnnxModel& model, const LoadOptions& options,
                                              peer::Backend& backend, std::string& why_windows) {
  const auto state = std::make_shared<peer::State>(backend);
  const auto window = [&] {
    return make_window_decoder(*imported.graph, imported.weights, imported.tokens, imported.logits, state);
  };
  const auto parts = train::derive_decoder(imported, model);
  if (!parts) {
    why_windows = parts.error().message;
    return window();
  }
  WEFT_TRY(auto cached, make_cached_decoder(*parts, imported.weights, state, {.rows_max = options.rows_max}));
  if (!options.verifies) return cached;
  WEFT_TRY(const auto whole, window());
  const bool exact = backend.name() != "cuda";
  WEFT_TRY_STATUS(verify(*cached, *whole, exact));
  return cached;
}

Status load_tokenizer(const LoadOptions& options, int64_t vocabulary, TextModel& model) {
  fs::path path = options.tokenizer;
  std::error_code code;
  if (path.empty() && fs::exists(options.model.parent_path() / "tokenizer.json", code))
    path = options.model.parent_path() / "tokenizer.json";
  if (path.empty()) {
    if (vocabulary == 256 || !options.needs_tokenizer) return {};
    return fail(ErrorCode::InvalidArgument,
                "the model has " + std::to_string(vocabulary) +
                    " tokens and no tokenizer.json lies beside it: give one with --tokenizer FILE");
  }
  WEFT_TRY(const std::string json, storage::read_text(path, text::kTokenizerFileMax));
  auto tokenizer = text::parse_tokenizer_json(json);
  if (!tokenizer) return fail(tokenizer.error().within(path.string()));
  if (static_cast<int64_t>(tokenizer->vocabulary_size()) > vocabulary)
    return fail(ErrorCode::InvalidArgument, path.string() + ": it has " +
                                                std::to_string(tokenizer->vocabulary_size()) +
                                                " tokens, the model only " + std::to_string(vocabulary));
  model.tokenizer = std::move(*tokenizer);
  if (!options.chat_template.empty()) return {};
  const fs::path config = path.parent_path() / "tokenizer_config.json";
  if (!fs::exists(config, code)) return {};
  WEFT_TRY(const std::string text, storage::read_text(config, size_t{16} << 20));
  if (const auto known = text::recognize_chat_template(text)) model.chat_template = *known;
  return {};
}

std::string fingerprint_of(const train::DecoderModel& imported, const peer::Backend& backend) {
  storage::Sha256 hash;
  hash.update(backend.numerics_fingerprint());
  for (const auto& [name, tensor] : imported.weights) {
    hash.update(name);
    hash.update(tensor.bytes());
  }
  return "weft-" + hash.hex().substr(0, 16) + "-dense";
}

Result<LoadedModel> load(const onnx::OnnxModel& model, const LoadOptions& options, peer::Backend& backend) {
  auto imported = train::import_decoder(model, options.context, "--context N");
  if (!imported) return fail(imported.error().within(options.model.string()));
  LoadedModel loaded;
  loaded.warnings = std::move(imported->warnings);
  auto decoder = make_decoder(*imported, model, options, backend, loaded.why_windows);
  if (!decoder) return fail(decoder.error().within(options.model.string()));
  loaded.decoder = std::move(*decoder);
  for (const auto& [name, tensor] : imported->weights)
    loaded.weights = loaded.weights + tensor.spec().bytes();
  loaded.text.name = options.name.empty() ? options.model.stem().string() : options.name;
  loaded.text.fingerprint = fingerprint_of(*imported, backend);
  loaded.text.created = static_cast<int64_t>(std::time(nullptr));
  WEFT_TRY_STATUS(load_tokenizer(options, loaded.decoder->vocabulary(), loaded.text));
  if (!options.chat_template.empty()) {
    WEFT_TRY(loaded.text.chat_template, text::chat_template_from(options.chat_template));
  }
  return loaded;
}

}  // namespace

Result<LoadedModel> load_model(const LoadOptions& options, peer::Backend& backend) {
  WEFT_TRY(const onnx::OnnxModel model, onnx::read_model(options.model));
  return load(model, options, backend);
}

Result<std::shared_ptr<Draft>> load_draft(const std::string& draft, const LoadedModel& model,
                                          peer::Backend& backend) {
  if (draft.empty() || draft == "none") return nullptr;
  if (draft == "ngram") return std::make_shared<NgramDraft>();
  LoadOptions options;
  options.model = draft;
  options.needs_tokenizer = false;
  WEFT_TRY(const onnx::OnnxModel file, onnx::read_model(draft));
  options.context = train::draft_context(file, model.decoder->context());
  WEFT_TRY(LoadedModel loaded, load(file, options, backend));
  const int64_t has = loaded.decoder->vocabulary(), wanted = model.decoder->vocabulary();
  if (has != wanted)
    return fail(ErrorCode::InvalidArgument, draft + " has " + std::to_string(has) + " tokens, the model " +
                                                std::to_string(wanted) + ": it cannot guess for it");
  if (!loaded.why_windows.empty())
    return fail(ErrorCode::InvalidArgument, draft + ": no caches can be made of it: " + loaded.why_windows);
  const double cost =
      static_cast<double>(loaded.weights.value) / std::max(1.0, static_cast<double>(model.weights.value));
  return std::make_shared<DecoderDraft>(std::move(loaded.decoder), cost);
}

}  // namespace weft::serve
