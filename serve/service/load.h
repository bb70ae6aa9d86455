// A model file made ready to serve: read, imported as a language model, given caches where its graph allows
// them, and tried against its whole window.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/result.h"
#include "peer/backend/backend.h"
#include "serve/decoder.h"
#include "serve/draft.h"
#include "serve/service/text_service.h"

namespace weft::serve {

struct LoadOptions {
  std::filesystem::path model;  // an ONNX file
  std::filesystem::path
      tokenizer;                // tokenizer.json; empty: the one beside the model, else bytes for 256 tokens
  std::string chat_template;    // by name; empty: that of tokenizer_config.json beside the tokenizer, if any
  std::string name;             // empty: the model file's, without its ending
  int64_t context = 0;          // where the file leaves the length open; 0: 1024
  int64_t rows_max = 64;        // positions of a pass
  bool needs_tokenizer = true;  // false: for who has tokens already
  bool verifies = true;         // against the whole window; takes two passes over it
};

struct LoadedModel {
  TextModel text;
  std::unique_ptr<Decoder> decoder;
  Bytes weights{};                    // that a token reads
  std::string why_windows;            // why there are no caches; empty: there are
  std::vector<std::string> warnings;  // lines
};

// Errors: of reading and importing, with the file's name; InvalidArgument for a tokenizer with more tokens
// than the model, or none where there are not 256; Internal when caches give other logits than the window.
Result<LoadedModel> load_model(const LoadOptions& options, peer::Backend& backend);

// Who guesses tokens for it: none, ngram, or an ONNX file with a small model of the same tokens. Null for
// none. Errors: of the file as load_model has them; InvalidArgument where it has other tokens than `model`,
// or where no caches can be made of it.
Result<std::shared_ptr<Draft>> load_draft(const std::string& draft, const LoadedModel& model,
                                          peer::Backend& backend);

}  // namespace weft::serve
