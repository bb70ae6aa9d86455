// A plan that runs, as the broker's store keeps it.
#include <cmath>

#include "proto/codec/field_counts.h"
#include "proto/codec/wire.h"

namespace weft::proto {

void put(const RunStage& from, wire::RunStage& to) {
  to.set_peer(put_bytes(from.peer.digest));
  put_plain(from.parameters, *to.mutable_parameters());
  to.set_microbatch_seconds(from.microbatch_seconds);
  to.set_pinned(from.pinned);
  to.set_owner(from.owner);
}
Status get(const wire::RunStage& from, RunStage& to) {
  Reader read("RunStage");
  read.digest(from.peer(), to.peer.digest, "peer");
  read.numbers(from.parameters(), to.parameters, kListMax, "parameters");
  read.not_negative(from.microbatch_seconds(), to.microbatch_seconds, "microbatch_seconds");
  to.pinned = from.pinned();
  read.name(from.owner(), to.owner, "owner");
  return read.status();
}

namespace {

// On the wire its fields are the plan's own.
static_assert(has_fields<RunTerms, 23>);
void put_terms(const RunTerms& from, wire::RunPlan& to) {
  to.set_steps(from.training.steps);
  to.set_batch_size(from.training.batch_size);
  to.set_microbatches(from.microbatches);
  to.set_parameter_count(from.parameter_count);
  to.set_evaluate_every(from.borders.evaluate_every);
  if (from.borders.checkpoint.every)
    to.set_checkpoint_nanoseconds(static_cast<uint64_t>(from.borders.checkpoint.every->count()));
  if (from.borders.checkpoint.steps) to.set_checkpoint_steps(*from.borders.checkpoint.steps);
  to.set_forward_microbatches(from.forward_microbatches);
  to.set_forward_samples(from.forward_samples);
  to.set_microbatch_size(from.training.microbatch_size);
  to.set_masked(from.masked);
  to.set_accuracy(from.accuracy);
  put_plain(from.loss_terms.weights, *to.mutable_loss_weights());
  to.set_accuracy_term(from.loss_terms.accuracy_term);
  to.set_counts_hits_apart(from.loss_terms.counts_hits_apart);
  to.set_is_of_tokens(from.loss_terms.is_of_tokens);
  to.set_prediction_stages(from.prediction_stages);
  to.set_equal_bits(from.equal_bits);
  to.set_equal_bits_required(from.equal_bits_required);
  to.set_fingerprint(from.fingerprint);
  for (const std::string& line : from.explanation) to.add_explanation(put_text(line));
  for (const Secret& ticket : from.relay_tickets) to.add_relay_tickets(put_bytes(ticket));
  to.set_data_key(put_bytes(from.data_key));
  to.set_predicted_nanoseconds(static_cast<uint64_t>(from.predicted_step.count()));
  if (from.gentler) to.set_gentler(*from.gentler);
  if (!from.served.name.empty()) put(from.served, *to.mutable_served());
  if (from.local_steps) proto::put(*from.local_steps, *to.mutable_local_steps());
  put_plain(from.exact_ranges, *to.mutable_exact_ranges());
  to.set_replicas_max(from.replicas_max);
  to.set_op_set(from.op_set);
}
void get_terms(const wire::RunPlan& from, RunTerms& to, Reader& read) {
  to.training.steps = from.steps();
  to.training.batch_size = from.batch_size();
  to.microbatches = from.microbatches();
  to.parameter_count = from.parameter_count();
  to.borders.evaluate_every = from.evaluate_every();
  if (from.has_checkpoint_nanoseconds())
    read.duration(from.checkpoint_nanoseconds(), to.borders.checkpoint.every.emplace(),
                  "checkpoint_nanoseconds");
  if (from.has_checkpoint_steps()) to.borders.checkpoint.steps = from.checkpoint_steps();
  to.forward_microbatches = from.forward_microbatches();
  to.forward_samples = from.forward_samples();
  to.training.microbatch_size = from.microbatch_size();
  to.masked = from.masked();
  to.accuracy = from.accuracy();
  if (from.loss_weights_size() != 0)  // a record of before there were several
    read.numbers(from.loss_weights(), to.loss_terms.weights, dag::kLossTermsMax, "loss_weights");
  for (const double weight : to.loss_terms.weights)
    read.require(std::abs(weight) <= dag::kLossWeightMax, "loss_weights", "not a number, or too large");
  to.loss_terms.accuracy_term = from.accuracy_term();
  to.loss_terms.counts_hits_apart = from.counts_hits_apart();
  to.loss_terms.is_of_tokens = from.is_of_tokens();
  read.require(from.accuracy_term() < to.loss_terms.count(), "accuracy_term", "no such term");
  to.prediction_stages = from.prediction_stages();
  to.equal_bits = from.equal_bits();
  to.equal_bits_required = from.equal_bits_required();
  read.text(from.fingerprint(), to.fingerprint, kSymbolMax, "fingerprint");
  read.messages(from.explanation(), to.explanation, kShortListMax, "explanation");
  read.require(static_cast<size_t>(from.relay_tickets_size()) <= kListMax, "relay_tickets", "too many");
  for (int i = 0; i < from.relay_tickets_size() && read.good(); ++i)
    read.secret(from.relay_tickets(i), to.relay_tickets.emplace_back(), "relay_tickets");
  read.secret(from.data_key(), to.data_key, "data_key");
  read.duration(from.predicted_nanoseconds(), to.predicted_step, "predicted_nanoseconds");
  if (from.has_gentler()) to.gentler = std::min<uint32_t>(from.gentler(), kGentlerMax);
  if (from.has_served()) read.part(from.served(), to.served, "served");
  if (from.has_local_steps()) read.part(from.local_steps(), to.local_steps.emplace(), "local_steps");
  read.numbers(from.exact_ranges(), to.exact_ranges, replicas::kReplicasMax, "exact_ranges");
  to.op_set = from.op_set();
  to.replicas_max = from.replicas_max();
  read.require(to.replicas_max <= replicas::kReplicasMax, "replicas_max", "too many");
}

}  // namespace

void put(const RunPlan& from, wire::RunPlan& to) {
  put_list(from.stages, *to.mutable_stages());
  to.set_after_step(from.after_step);
  put_terms(from.terms, to);
  to.set_diverged_at(from.diverged_at);
}
Status get(const wire::RunPlan& from, RunPlan& to) {
  Reader read("RunPlan");
  read.list(from.stages(), to.stages, kStagesMax, "stages");
  to.after_step = from.after_step();
  get_terms(from, to.terms, read);
  to.diverged_at = from.diverged_at();
  return read.status();
}

}  // namespace weft::proto
