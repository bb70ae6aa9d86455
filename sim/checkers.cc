#include "sim/checkers.h"

#include <algorithm>
#include <cstdlib>

#include "base/overloaded.h"

namespace weft::sim {

using proto::JobEventKind;
using proto::JobState;

namespace {
std::string number(uint64_t value) { return std::to_string(value); }

// Why a run is planned anew: somebody is slower than the others, or was left out for that.
// A large blob that is given over a slow line may take longer than its asker waits: here it comes in one
// piece.
bool is_about_speed(const std::string& text) {
  for (const char* reason : {"planned anew", "slower than promised", "without those that were lost",
                             "the others have waited", "fetching the stage's tensors: nobody answers"})
    if (text.find(reason) != std::string::npos) return true;
  return false;
}

bool is_about_leaving_out(const proto::JobEvent& event) {
  return event.text.find(" end their round without ") != std::string::npos;
}

// What a border writes at once may come on top of the script's bound.
constexpr size_t kBorderCommands = 8;
// What of it the crash took, if anything.
ReplicaLaws::Complaint find_lost(const SimBlobs& blobs, const broker::StoredJob& stored) {
  if (stored.last.state < JobState::Finished)
    for (const auto& checkpoint : stored.checkpoints)
      for (const auto& tensor : checkpoint.tensors)
        if (!blobs.has_durable(tensor.sha256))
          return "a tensor of the checkpoint of step " + number(checkpoint.step) + " was lost in the crash";
  if (stored.result)
    for (const auto& tensor : stored.result->tensors)
      if (!blobs.has_durable(tensor.sha256)) return "a tensor of its result was lost in the crash";
  for (const auto& report : stored.predictions)
    for (const auto& tensor : report.outputs)
      if (!blobs.has_durable(tensor.sha256)) return "a prediction was lost in the crash";
  return std::nullopt;
}
// Of those that are written one by one; means are looked at in as many tensors as there are.
size_t count_open(const auto& script) {
  return static_cast<size_t>(std::count_if(script.begin(), script.end(), [](const proto::Command& command) {
    return command.kind != proto::CommandKind::CheckMean;
  }));
}

// Says of honest peers what is said of liars alone.
bool is_unjust(const proto::JobEvent& event, const std::set<std::string>& liars) {
  if (event.kind != JobEventKind::Notice) return false;
  const size_t said = event.text.find(" alone refuses what ");
  return (said != std::string::npos && !liars.contains(event.text.substr(0, said))) ||
         (liars.empty() && event.text.find(" was looked at again") != std::string::npos);
}

}  // namespace

Checkers::Checkers(World& world, const SimStore& store, const SimBlobs& blobs,
                   const std::vector<JobSpec>& specs, size_t script_max)
    : script_max_(script_max), world_(world), store_(store), blobs_(blobs), specs_(specs) {}

void Checkers::fail(proto::JobNumber job, const std::string& what) {
  world_.fail("job " + number(job) + ": " + what);
}

const JobSpec* Checkers::spec_of(proto::JobNumber job) const {
  const auto at = jobs_.find(job);
  return at == jobs_.end() ? nullptr : &specs_[at->second.spec];
}

uint64_t Checkers::step_of(proto::JobNumber job) const {
  const auto at = jobs_.find(job);
  return at == jobs_.end() ? 0 : at->second.committed;
}

// Runs that have left somebody out by then are about to be planned anew.
void Checkers::expect_only_restarts(bool only) {
  only_restarts_ = only;
  for (auto& [number, job] : jobs_)
    job.for_speed = job.for_speed || (only && job.replicas && job.replicas->ends());
}

ReplicaLaws::Counts Checkers::replica_counts() const {
  ReplicaLaws::Counts sum;
  for (const auto& [number, job] : jobs_)
    if (job.replicas) sum += job.replicas->counts();
  return sum;
}

void Checkers::on_durable(std::span<const broker::Record> records) {
  for (const broker::Record& record : records)
    std::visit(Overloaded{
                   [&](const broker::PrincipalAdmitted&) { world_.note(What::Record, 0); },
                   [&](const broker::JobSubmitted& r) {
                     world_.note(What::Record, 1, r.job);
                     if (jobs_.contains(r.job)) return fail(r.job, "its number was used before");
                     Job& job = jobs_[r.job];
                     job.spec = static_cast<uint32_t>(std::strtoul(r.submission->job.c_str(), nullptr, 10));
                     const JobSpec& spec = specs_[job.spec];
                     job.plain = std::make_unique<PlainLaws>(spec);
                     if (spec.has_replicas())
                       job.replicas = std::make_unique<ReplicaLaws>(spec, lie_about_means_);
                   },
                   [&](const broker::JobChanged& r) { on_changed(r); },
                   [&](const broker::CheckpointCommitted& r) {
                     world_.note(What::Record, 3, r.job, r.step);
                     on_checkpoint(r);
                   },
                   [&](const broker::PredictionCommitted& r) { on_prediction(r); },
                   [&](const broker::ResultCommitted& r) {
                     world_.note(What::Record, 5, r.job, r.result.step);
                     on_result(r.job, r.result);
                   },
                   [&](const proto::JobEvent& r) {
                     world_.note(What::Record, 6, r.job, (r.sequence << 8) | static_cast<uint64_t>(r.kind));
                     on_event(r);
                   },
                   [&](const broker::RunStarted& r) { on_run(r); },
                   [&](const broker::CommandIssued& r) { on_command(r); },
                   [&](const broker::PeerBanned&) {},
                   [&](const broker::PrincipalForgotten&) {},
                   [&](const broker::JobEnded&) {},
                   [&](const broker::RunEnded& r) { world_.note(What::Record, 9, r.job); },
               },
               record);
}

void Checkers::on_changed(const broker::JobChanged& r) {
  world_.note(What::Record, 2, r.job, static_cast<uint64_t>(r.state));
  Job& job = jobs_[r.job];
  if (job.ended && r.state < JobState::Finished) fail(r.job, "it goes on after its end");
  job.ended = r.state >= JobState::Finished;
  if (r.state == JobState::Running) job.for_speed = false;
  job.for_speed |= is_about_speed(r.reason);
  // Nobody can tell a broker that faults ended twice from one that planning did.
  const bool is_unlucky =
      r.reason.starts_with("the broker ended twice while") && world_.noted(What::BrokerCrashes) >= 2;
  if (r.state == JobState::Failed && !is_unlucky) fail(r.job, "it failed: " + r.reason);
  if (r.state == JobState::Stopped && !specs_[job.spec].stop)
    fail(r.job, "it stopped and nobody asked for it");
  if (r.state == JobState::Finished && !store_.state().jobs.at(r.job).result)
    fail(r.job, "it is finished and has no result");
}

void Checkers::on_prediction(const broker::PredictionCommitted& r) {
  world_.note(What::Record, 4, r.job, r.report.microbatch);
  Job& job = jobs_[r.job];
  if (!job.predicted.insert(r.report.microbatch).second)
    fail(r.job, "microbatch " + number(r.report.microbatch) + " was predicted twice");
  fail_if(r.job, job.plain->on_prediction(r.report));
  for (const auto& output : r.report.outputs) {
    if (!blobs_.has_durable(output.sha256)) fail(r.job, "a recorded prediction is not durable");
  }
}

void Checkers::on_run(const broker::RunStarted& r) {
  world_.note(What::Record, 7, r.job, r.plan_version);
  Job& job = jobs_[r.job];
  if (r.plan_version <= job.command_plan)
    fail(r.job,
         "plan version " + number(r.plan_version) + " began after version " + number(job.command_plan));
  job.command_plan = r.plan_version;
  job.command = 0;
  if (job.replicas) fail_if(r.job, job.replicas->on_run(*r.plan, r.plan_version));
  ++counts_.plans;
}

void Checkers::on_command(const broker::CommandIssued& r) {
  world_.note(What::Record, 8, r.job, r.command.sequence);
  Job& job = jobs_[r.job];
  if (r.command.plan_version != job.command_plan)
    fail(r.job, "a command of plan version " + number(r.command.plan_version) + " while version " +
                    number(job.command_plan) + " runs");
  if (r.command.sequence != job.command + 1)
    fail(r.job, "command " + number(r.command.sequence) + " after " + number(job.command));
  job.command = r.command.sequence;
  if (job.replicas) fail_if(r.job, job.replicas->on_command(r.command));
  if ((job.replicas ? job.replicas->told(r.command.committed) : r.command.committed) > job.committed)
    fail(r.job, "a command calls step " + number(r.command.committed) + " committed before its event");
  if (const size_t open = count_open(store_.state().jobs.at(r.job).script);
      open > script_max_ + kBorderCommands)
    fail(r.job, "its script has " + number(open) + " commands that are not settled");
}

void Checkers::on_event(const proto::JobEvent& event) {
  Job& job = jobs_[event.job];
  if (event.sequence != job.last_event + 1)
    fail(event.job, "event " + number(event.sequence) + " after event " + number(job.last_event));
  job.last_event = event.sequence;
  if (world_.traces() && !event.text.empty()) world_.say("job " + number(event.job) + ": " + event.text);
  if (event.kind == JobEventKind::Plan && job.replicas) job.replicas->on_plan(event);
  if (event.kind == JobEventKind::Step) on_training_step(job, event);
  if (event.kind == JobEventKind::Evaluation) on_evaluation(job, event);
  if (is_unjust(event, liar_names_)) fail(event.job, "honest peers are called liars: " + event.text);
  job.for_speed |= is_about_speed(event.text);
  if (only_restarts_ && !job.for_speed && is_about_leaving_out(event))
    fail(event.job, "a replica is left out, although only the broker was restarted");
  if (event.kind == JobEventKind::Notice && event.text.find("no progress") != std::string::npos)
    world_.note(What::User, 0, 99, event.job);
}

void Checkers::on_training_step(Job& job, const proto::JobEvent& event) {
  const JobSpec& spec = specs_[job.spec];
  ++counts_.steps;
  // Replicas make several at once.
  if (job.replicas ? event.step <= job.committed : event.step != job.committed + 1)
    return fail(event.job,
                "step " + number(event.step) + " was committed after step " + number(job.committed));
  job.committed = event.step;
  if (event.samples != event.step * spec.microbatches * spec.microbatch_size)
    fail(event.job,
         "after step " + number(event.step) + " the ledger stands at sample " + number(event.samples));
  fail_if(event.job, job.replicas ? job.replicas->on_step(event) : job.plain->on_step(event));
}

void Checkers::on_evaluation(Job& job, const proto::JobEvent& event) {
  if (event.step <= job.evaluated) fail(event.job, "step " + number(event.step) + " was evaluated twice");
  job.evaluated = event.step;
  fail_if(event.job, job.replicas ? job.replicas->on_evaluation(event) : job.plain->on_evaluation(event));
}

void Checkers::on_agreed(const proto::AssignStage& assignment, uint64_t step, const HashRunner& runner) {
  const auto job = jobs_.find(assignment.run);
  if (job == jobs_.end() || !job->second.replicas || runner.agreement() == nullptr) return;
  job->second.replicas->on_agreed(assignment, step, runner.agreed());
}

void Checkers::on_heard(const PeerId& peer, const proto::Message& message) {
  const auto* refused = std::get_if<proto::DifferenceRefused>(&message);
  if (refused == nullptr) return;
  ++counts_.differences_refused;
  const auto job = jobs_.find(refused->run);
  if (liars_.contains(peer) || job == jobs_.end()) return;
  for (const auto& [seat, owner] : job->second.owners[refused->plan_version])
    if (seat.replica == refused->replica && liars_.contains(owner)) return;
  fail(refused->run, "what replica " + number(refused->replica + 1) + " sent was refused, and it is honest");
}

void Checkers::check_tensors(proto::JobNumber job, uint64_t step,
                             std::span<const proto::TensorReference> tensors, const char* where) {
  fail_if(job, jobs_.at(job).plain->check_tensors(step, tensors, where));
}

void Checkers::on_checkpoint(const broker::CheckpointCommitted& checkpoint) {
  Job& job = jobs_[checkpoint.job];
  ++counts_.checkpoints;
  job.checkpointed = checkpoint.made();
  if (checkpoint.made() > job.committed)
    fail(checkpoint.job, "a checkpoint of step " + number(checkpoint.made()) + ", which is not committed");
  fail_if(checkpoint.job,
          job.replicas ? job.replicas->on_checkpoint(checkpoint) : job.plain->on_checkpoint(checkpoint));
  for (const auto& tensor : checkpoint.tensors)
    if (!blobs_.has_durable(tensor.sha256))
      fail(checkpoint.job, "the checkpoint of step " + number(checkpoint.step) +
                               " was recorded before its tensors were durable");
}

void Checkers::on_result(proto::JobNumber job_number, const proto::JobResult& result) {
  Job& job = jobs_[job_number];
  const JobSpec& spec = specs_[job.spec];
  if (spec.predicts) {
    if (job.predicted.size() != spec.forward_microbatches)
      fail(job_number, "it is finished and " + number(job.predicted.size()) + " microbatches are predicted");
    return;
  }
  if (result.step != spec.steps || job.committed != spec.steps)
    fail(job_number, "its result is of step " + number(result.step) + ", committed are " +
                         number(job.committed) + " of " + number(spec.steps));
  if (result.tensors.size() != spec.layers)
    fail(job_number, "its result has " + number(result.tensors.size()) + " tensors");
  if (job.replicas) return fail_if(job_number, job.replicas->on_result(result));
  check_tensors(job_number, result.step, result.tensors, "the result");
}

void Checkers::on_broker_started() {
  sent_.clear();
  for (auto& [job_number, job] : jobs_) {
    const auto stored = store_.state().jobs.find(job_number);
    if (stored == store_.state().jobs.end()) {
      if (job.accepted) fail(job_number, "it was accepted and is not there after the crash");
      continue;
    }
    if (stored->second.committed_step != job.committed)
      fail(job_number, "committed steps are not there after the crash");
    fail_if(job_number, find_lost(blobs_, stored->second));
  }
}

void Checkers::on_accepted(proto::JobNumber job) {
  const auto at = jobs_.find(job);
  if (at == jobs_.end()) return fail(job, "it was accepted and is not on the disk");
  at->second.accepted = true;
}

void Checkers::on_assigned(const PeerId& peer, uint64_t connection, const proto::AssignStage& m) {
  Job& job = jobs_[m.run];
  if (m.plan_version < job.plan)
    return fail(m.run, "a stage of plan version " + number(m.plan_version) + " after one of version " +
                           number(job.plan));
  if (m.plan_version > job.plan && job.plan != 0) {
    ++counts_.recoveries;
    if (only_restarts_ && !job.for_speed) fail(m.run, "a new plan, although only the broker was restarted");
  }
  job.plan = m.plan_version;
  const auto [owner, is_new] = job.owners[m.plan_version].emplace(m.seat, peer);
  if (!is_new && owner->second != peer)
    fail(m.run, plan::to_string(m.seat) + " of plan version " + number(m.plan_version) + " has two owners");
  if (const auto wrong = sent_.on_assigned(peer, connection, m)) fail(m.run, *wrong);
  const uint64_t begins = m.local && m.after_step > m.local->steps.begun_after
                              ? steps_after(m.local->steps, m.after_step)
                              : m.after_step;
  if (!liars_.empty() && begins < job.checkpointed)
    fail(m.run, "it goes back to step " + number(begins) + ", although it has a checkpoint of step " +
                    number(job.checkpointed));
  if (job.replicas) return fail_if(m.run, job.replicas->on_assigned(m));
  check_tensors(m.run, m.after_step, m.tensors, "an assignment");
}

void Checkers::check_command_sent(uint64_t connection, const proto::Command& m) {
  const SentStages::Judged judged = sent_.on_command(connection, m);
  if (judged.complaint) fail(m.run, *judged.complaint);
  if (!judged.has_stage) return;
  const Job& job = jobs_[m.run];
  if (m.plan_version != job.command_plan || m.sequence > job.command)
    fail(m.run, "command " + number(m.sequence) + " was sent before it was durable");
}

void Checkers::on_sent(const PeerId& peer, uint64_t connection, const proto::Message& message) {
  std::visit(Overloaded{
                 [&](const proto::AssignStage& m) { on_assigned(peer, connection, m); },
                 [&](const proto::ReleaseStage& m) { sent_.on_released(peer, m); },
                 [&](const proto::ResumeStage& m) {
                   ++counts_.resumed;
                   Job& job = jobs_[m.run];
                   if (m.plan_version != job.plan)
                     fail(m.run, "a stage of plan version " + number(m.plan_version) +
                                     " is resumed, the newest is " + number(job.plan));
                   sent_.on_resumed(peer, connection, m);
                 },
                 [&](const proto::Command& m) { check_command_sent(connection, m); },
                 [&](const proto::StandBy& m) {
                   // What a stage offers itself is tried, and believed once somebody has it.
                   const bool is_offered = !liars_.empty() && !m.sources.empty();
                   if (!m.tensors.empty() && !is_offered && !jobs_.at(m.run).replicas)
                     check_tensors(m.run, m.step, m.tensors, "what a stand-by fetches");
                 },
                 [&](const proto::Refusal&) { ++counts_.refused; },
                 [](const auto&) {},
             },
             message);
}

void Checkers::on_peers_published(const proto::PeerList& list, Duration lease) {
  const auto is_counted = [](const std::string& state) {
    return state != "gone" && state != "left" && state != "paused" && state != "other version";
  };
  for (const auto& peer : list.peers)
    if (is_counted(peer.state) && peer.seconds_since_heard > seconds(lease + std::chrono::seconds(1)))
      return world_.fail("a peer is still counted, and nothing was heard from it for " +
                         std::to_string(static_cast<int>(peer.seconds_since_heard)) + " s");
}

void Checkers::on_stage_loaded(const proto::AssignStage& assignment) {
  if (!jobs_.contains(assignment.run)) return;
  if (ReplicaLaws* replicas = jobs_[assignment.run].replicas.get())
    return fail_if(assignment.run, replicas->on_loaded(assignment));
  check_tensors(assignment.run, assignment.after_step, assignment.tensors, "a stage");
}

void Checkers::on_tensor_used(const proto::AssignStage& assignment, const proto::TensorHeader& header) {
  if (header.run != assignment.run || header.plan_version != assignment.plan_version)
    fail(assignment.run, "a tensor of plan version " + number(header.plan_version) + " was used in version " +
                             number(assignment.plan_version));
}

void Checkers::on_step_report(const proto::StepReport& report) {
  double waited = 0;
  for (const proto::LinkUse& link : report.links) waited += link.seconds_waiting;
  counts_.waits += waited > 0 ? 1 : 0;
  if (report.updated && report.seconds_busy + waited > report.seconds + 1e-6)
    fail(report.run, "a stage computed for " + std::to_string(report.seconds_busy) + " s and waited for " +
                         std::to_string(waited) + " s of a step of " + std::to_string(report.seconds) + " s");
}

void Checkers::on_peer_memory(size_t blobs) {
  if (peer_blobs_max_ == 0) {
    size_t tensors = 0;
    for (const JobSpec& spec : specs_)
      tensors = std::max(tensors, size_t{spec.layers} * (1 + spec.slots + (spec.has_replicas() ? 3 : 0)) +
                                      spec.forward_microbatches);
    peer_blobs_max_ = 12 * tensors;
  }
  if (blobs > peer_blobs_max_) world_.fail("a peer holds " + number(blobs) + " blobs");
}

}  // namespace weft::sim
