// A served model, and requests to it.
#include "proto/codec/field_counts.h"
#include "proto/codec/wire.h"

namespace weft::proto {
namespace {

constexpr uint64_t kPositionsMax = uint64_t{1} << 40;
constexpr uint64_t kWideMax = uint64_t{1} << 32;

void put(const dag::PartRange& from, wire::PartRange& to) {
  to.set_begin(from.begin);
  to.set_end(from.end);
}

}  // namespace

static_assert(has_fields<ServeDraft, 6>);
void put(const ServeDraft& from, wire::ServeDraft& to) {
  to.set_kind(put_enum<wire::DraftKind>(from.kind, plan::DraftKind::Ngram));
  to.set_right(from.right);
  if (from.graph) put(*from.graph, *to.mutable_graph());
  to.set_tokens(from.tokens);
  to.set_logits(from.logits);
  to.set_passes_shared(from.passes_shared);
}
Status get(const wire::ServeDraft& from, ServeDraft& to) {
  Reader read("ServeDraft");
  read.enumerator(from.kind(), to.kind, plan::DraftKind::Decoder, "kind", plan::DraftKind::Ngram);
  read.not_negative(from.right(), to.right, "right");
  read.require(to.right <= 1, "right", "above 1");
  read.text(from.tokens(), to.tokens, kSymbolMax, "tokens");
  read.text(from.logits(), to.logits, kSymbolMax, "logits");
  to.passes_shared = from.passes_shared();
  read.require(to.passes_shared <= kStagesMax, "passes_shared", "above 1024");
  read.require(from.has_graph() == (to.kind == plan::DraftKind::Decoder), "graph",
               "of a decoder there is one, of others none");
  if (!from.has_graph()) return read.status();
  dag::Graph graph;
  read.part(from.graph(), graph, "graph");
  WEFT_TRY_STATUS(read.status());
  to.graph = std::make_shared<const dag::Graph>(std::move(graph));
  return {};
}

static_assert(has_fields<dag::PartRange, 2>);
static_assert(has_fields<ServeProgram, 10>);
void put(const ServeProgram& from, wire::ServeProgram& to) {
  if (from.graph) put(*from.graph, *to.mutable_graph());
  to.set_tokens(from.tokens);
  to.set_logits(from.logits);
  for (const dag::PartRange& range : from.ranges) put(range, *to.add_ranges());
  to.set_rows_max(from.rows_max);
  to.set_passes_max(from.passes_max);
  to.set_sequences_max(from.sequences_max);
  to.set_positions_max(from.positions_max);
  if (from.draft) put(*from.draft, *to.mutable_draft());
  to.set_kept_positions_max(from.kept_positions_max);
}
Status get(const wire::ServeProgram& from, ServeProgram& to) {
  Reader read("ServeProgram");
  dag::Graph graph;
  read.part(from.graph(), graph, "graph");
  read.text(from.tokens(), to.tokens, kSymbolMax, "tokens");
  read.text(from.logits(), to.logits, kSymbolMax, "logits");
  read.require(from.ranges_size() == 1 || from.ranges_size() == 2, "ranges", "not one or two");
  uint32_t end = 0;
  for (int i = 0; i < from.ranges_size() && read.good(); ++i) {
    const dag::PartRange range{from.ranges(i).begin(), from.ranges(i).end()};
    read.require(range.begin < range.end && range.end <= kInitializersMax, "ranges", "empty, or too large");
    read.require(i == 0 || range.begin > end, "ranges", "they do not ascend, or touch");
    end = range.end;
    to.ranges.push_back(range);
  }
  to.rows_max = from.rows_max();
  read.require(to.rows_max >= 1 && to.rows_max <= kServeRowsMax, "rows_max", "not in 1 to 4096");
  to.passes_max = from.passes_max();
  read.require(to.passes_max >= 1 && to.passes_max <= kStagesMax, "passes_max", "not in 1 to 1024");
  to.sequences_max = from.sequences_max();
  read.require(to.sequences_max >= 1 && to.sequences_max <= kInFlightMax, "sequences_max",
               "not in 1 to 65536");
  to.positions_max = from.positions_max();
  read.require(to.positions_max >= 1 && to.positions_max <= kPositionsMax, "positions_max",
               "not in 1 to 2^40");
  if (from.has_draft()) read.part(from.draft(), to.draft.emplace(), "draft");
  to.kept_positions_max = from.kept_positions_max();
  read.require(to.kept_positions_max <= to.positions_max, "kept_positions_max", "above positions_max");
  WEFT_TRY_STATUS(read.status());
  to.graph = std::make_shared<const dag::Graph>(std::move(graph));
  return {};
}

static_assert(has_fields<ServedModel, 8>);
void put(const ServedModel& from, wire::ServedModel& to) {
  to.set_name(from.name);
  to.set_tokenizer(from.tokenizer);
  to.set_chat_template(from.chat_template);
  to.set_context(from.context);
  to.set_vocabulary(from.vocabulary);
  to.set_positions_max(from.positions_max);
  to.set_sequences_max(from.sequences_max);
  to.set_fingerprint(from.fingerprint);
}
Status get(const wire::ServedModel& from, ServedModel& to) {
  Reader read("ServedModel");
  read.name(from.name(), to.name, "name");
  read.text(from.tokenizer(), to.tokenizer, kSymbolMax, "tokenizer");
  read.name(from.chat_template(), to.chat_template, "chat_template");
  to.context = from.context();
  to.vocabulary = from.vocabulary();
  to.positions_max = from.positions_max();
  read.require(to.context <= kWideMax, "context", "above 2^32");
  read.require(to.vocabulary <= kWideMax, "vocabulary", "above 2^32");
  read.require(to.positions_max <= kPositionsMax, "positions_max", "above 2^40");
  to.sequences_max = from.sequences_max();
  read.text(from.fingerprint(), to.fingerprint, kSymbolMax, "fingerprint");
  return read.status();
}

// ---- requests

static_assert(has_fields<ServeRequest, 11>);
void put(const ServeRequest& from, wire::ServeRequest& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_request(from.request);
  put_plain(from.tokens, *to.mutable_tokens());
  to.set_tokens_max(from.tokens_max);
  to.set_temperature(from.temperature);
  to.set_top_p(from.top_p);
  to.set_top_k(from.top_k);
  to.set_seed(from.seed);
  if (from.alternatives) to.set_alternatives(*from.alternatives);
  put_plain(from.ends, *to.mutable_ends());
}
Status get(const wire::ServeRequest& from, ServeRequest& to) {
  Reader read("ServeRequest");
  to.run = from.run();
  to.plan_version = from.plan_version();
  to.request = from.request();
  read.numbers(from.tokens(), to.tokens, kSequenceMax, "tokens");
  read.require(!to.tokens.empty(), "tokens", "there are none");
  for (const int64_t token : to.tokens) read.require(token >= 0, "tokens", "one is negative");
  to.tokens_max = from.tokens_max();
  read.require(to.tokens_max <= kSequenceMax, "tokens_max", "above 2^20");
  read.not_negative(from.temperature(), to.temperature, "temperature");
  read.positive(from.top_p(), to.top_p, "top_p");
  read.require(to.top_p <= 1, "top_p", "above 1");
  to.top_k = from.top_k();
  read.require(to.top_k <= kWideMax, "top_k", "above 2^32");
  to.seed = from.seed();
  if (from.has_alternatives()) to.alternatives = from.alternatives();
  read.require(from.alternatives() <= kAlternativesMax, "alternatives", "above 64");
  read.numbers(from.ends(), to.ends, kShortListMax, "ends");
  return read.status();
}

static_assert(has_fields<CancelRequest, 3>);
void put(const CancelRequest& from, wire::CancelRequest& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_request(from.request);
}
Status get(const wire::CancelRequest& from, CancelRequest& to) {
  to.run = from.run();
  to.plan_version = from.plan_version();
  to.request = from.request();
  return {};
}

static_assert(has_fields<ServedToken, 3>);
void put(const ServedToken& from, wire::ServedToken& to) {
  to.set_token(from.token);
  to.set_log_probability(from.log_probability);
  for (const auto& [token, log_probability] : from.alternatives) {
    to.add_others(token);
    to.add_log_probabilities(log_probability);
  }
}
Status get(const wire::ServedToken& from, ServedToken& to) {
  Reader read("ServedToken");
  to.token = from.token();
  read.require(to.token >= 0, "token", "negative");
  read.finite(from.log_probability(), to.log_probability, "log_probability");
  const int count = from.others_size();
  read.require(static_cast<size_t>(count) <= kAlternativesMax, "others", "too many");
  read.require(from.log_probabilities_size() == count, "log_probabilities", "not one for each");
  for (int i = 0; i < count && read.good(); ++i) {
    auto& [token, log_probability] = to.alternatives.emplace_back(from.others(i), 0.0);
    read.require(token >= 0, "others", "one is negative");
    read.finite(from.log_probabilities(i), log_probability, "log_probabilities");
  }
  return read.status();
}

static_assert(has_fields<ServeLoad, 4>);
void put(const ServeLoad& from, wire::ServeLoad& to) {
  to.set_positions(from.positions);
  to.set_under_way(from.under_way);
  to.set_passes(from.passes);
  to.set_rows(from.rows);
}
Status get(const wire::ServeLoad& from, ServeLoad& to) {
  Reader read("ServeLoad");
  to = {from.positions(), from.under_way(), from.passes(), from.rows()};
  read.require(to.positions <= kPositionsMax, "positions", "above 2^40");
  read.require(to.under_way <= kStagesMax, "under_way", "above 1024");
  return read.status();
}

static_assert(has_fields<ServeProgress, 10>);
void put(const ServeProgress& from, wire::ServeProgress& to) {
  to.set_run(from.run);
  to.set_plan_version(from.plan_version);
  to.set_request(from.request);
  to.set_first(from.first);
  put_list(from.tokens, *to.mutable_tokens());
  if (from.end) to.set_end(put_enum<wire::ServeEnd>(*from.end));
  to.set_guesses(from.guesses);
  to.set_guesses_right(from.guesses_right);
  if (from.load) put(*from.load, *to.mutable_load());
  if (!from.error) return;
  to.set_code(put_enum<wire::ErrorCode>(from.error->code));
  to.set_message(put_text(from.error->message));
}
Status get(const wire::ServeProgress& from, ServeProgress& to) {
  Reader read("ServeProgress");
  to.run = from.run();
  to.plan_version = from.plan_version();
  to.request = from.request();
  to.first = from.first();
  read.require(to.first <= kPositionsMax, "first", "above 2^40");
  read.list(from.tokens(), to.tokens, kShortListMax, "tokens");
  if (from.end() != wire::SERVE_END_UNSPECIFIED)
    read.enumerator(from.end(), to.end.emplace(), ServeEnd::Failed, "end");
  to.guesses = from.guesses();
  to.guesses_right = from.guesses_right();
  read.require(to.guesses_right <= to.guesses, "guesses_right", "more than there are guesses");
  if (from.has_load()) read.part(from.load(), to.load.emplace(), "load");
  if (from.code() == wire::ERROR_CODE_UNSPECIFIED) return read.status();
  to.error.emplace();
  read.error_code(from.code(), to.error->code, "code");
  read.message(from.message(), to.error->message, "message");
  return read.status();
}

}  // namespace weft::proto
