#include "peer/service/serve_draft.h"

#include <algorithm>
#include <string>

#include "dag/op_table.h"
#include "peer/backend/reference/reference_kernels.h"

namespace weft::peer {
namespace {

dag::Weights take_weights(const dag::Graph& graph, dag::Weights& weights) {
  dag::Weights taken;
  for (const dag::Initializer& initializer : graph.initializers())
    if (auto weight = weights.extract(proto::draft_name(initializer.name)))
      taken.emplace(initializer.name, std::move(weight.mapped()));
  return taken;
}

double bytes_of(const dag::Graph& graph) {
  double bytes = 0;
  for (const dag::Initializer& initializer : graph.initializers())
    bytes += static_cast<double>(graph.spec(initializer.value).bytes().value);
  return bytes;
}

Result<EntryDraft> make_decoder_draft(const proto::ServeProgram& program, int64_t vocabulary,
                                      dag::Weights& weights, Backend& backend) {
  const proto::ServeDraft& draft = *program.draft;
  const dag::Weights own = take_weights(*draft.graph, weights);
  WEFT_TRY(
      auto derived,
      dag::Incremental::derive(
          draft.graph, dag::op_table(),
          {.tokens = draft.tokens, .logits = draft.logits, .evaluate = evaluate_reference, .weights = &own}));
  const auto model = std::make_shared<const dag::Incremental>(std::move(derived));
  if (model->logits().width != vocabulary)
    return fail(ErrorCode::InvalidArgument, "it has " + std::to_string(model->logits().width) +
                                                " tokens, and the model that it guesses for " +
                                                std::to_string(vocabulary));
  WEFT_TRY(auto decoder, serve::make_cached_decoder(model, own, std::make_shared<State>(backend),
                                                    {.rows_max = program.rows_max}));
  const double positions =
      std::min(static_cast<double>(program.positions_max),
               static_cast<double>(program.sequences_max) * static_cast<double>(decoder->context()));
  const double a_position = static_cast<double>(decoder->bytes_of(decoder->context()).value) /
                            static_cast<double>(decoder->context());
  constexpr double kMost = 1e18;
  const Bytes caches{static_cast<int64_t>(std::min(positions * a_position, kMost))};
  // A row reads all weights once.
  const double cost = bytes_of(*draft.graph) / std::max(1.0, bytes_of(*program.graph));
  return EntryDraft{std::make_shared<serve::DecoderDraft>(std::move(decoder), cost), caches};
}

}  // namespace

Result<EntryDraft> make_draft(const proto::ServeProgram& program, int64_t vocabulary, dag::Weights& weights,
                              Backend& backend) {
  if (!program.draft) return EntryDraft{};
  switch (program.draft->kind) {
    case plan::DraftKind::None:
      break;
    case plan::DraftKind::Ngram:
      return EntryDraft{std::make_shared<serve::NgramDraft>()};
    case plan::DraftKind::Coin:
      if (vocabulary < 2) break;
      return EntryDraft{std::make_shared<serve::CoinDraft>(program.draft->right, vocabulary)};
    case plan::DraftKind::Decoder: {
      auto made = make_decoder_draft(program, vocabulary, weights, backend);
      if (!made) return fail(made.error().within("the draft"));
      return made;
    }
  }
  return EntryDraft{};
}

}  // namespace weft::peer
