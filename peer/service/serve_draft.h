// Who guesses tokens ahead at the entry of a served model, made of what it was assigned.
#pragma once

#include <memory>

#include "base/result.h"
#include "base/units.h"
#include "dag/incremental/incremental.h"
#include "peer/backend/backend.h"
#include "proto/messages.h"
#include "serve/draft.h"

namespace weft::peer {

struct EntryDraft {
  std::shared_ptr<serve::Draft> draft;  // none: nothing is guessed
  Bytes caches{};                       // for all positions that may be granted
};

// Takes the weights of a model that guesses out of `weights`, where they stand by draft_name(). `vocabulary`:
// of the model that it guesses for. Errors: InvalidArgument for a model of other tokens; what
// Incremental::derive and make_cached_decoder say.
Result<EntryDraft> make_draft(const proto::ServeProgram& program, int64_t vocabulary, dag::Weights& weights,
                              Backend& backend);

}  // namespace weft::peer
