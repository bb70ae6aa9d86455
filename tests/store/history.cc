#include "tests/store/history.h"

#include "proto/codec/codec.h"

namespace weft::test {
namespace {

using namespace broker;
using proto::JobEventKind;
using proto::JobState;

Digest digest(uint64_t number) {
  Digest made;
  for (size_t i = 0; i < 8; ++i) made.bytes[i] = static_cast<uint8_t>(number >> (8 * i));
  return made;
}

std::vector<proto::TensorReference> tensors(uint64_t step, size_t count) {
  std::vector<proto::TensorReference> made;
  for (size_t i = 0; i < count; ++i)
    made.push_back({dag::of_initializer("layer" + std::to_string(i) + ".weight"),
                    {dag::DType::F32, {64, 64}},
                    digest(step * 1000 + i)});
  return made;
}

class Author {
 public:
  std::vector<std::vector<Write>> lives{1};

  void append(std::vector<Record> records) {
    lives.back().emplace_back([all = std::move(records)](Store& store) { return store.append(all); });
  }
  void restart() { lives.emplace_back(); }

  proto::JobEvent event(proto::JobNumber job, JobEventKind kind, uint64_t step) {
    proto::JobEvent made{.job = job, .sequence = ++sequence_[job], .kind = kind, .step = step};
    made.loss = 1.0 / static_cast<double>(step + 1);
    made.text = std::string(step % 7 * 40, 'x');
    return made;
  }
  CommandIssued command(proto::JobNumber job, proto::PlanVersion version, proto::CommandKind kind,
                        uint64_t step, uint64_t settled) {
    proto::Command made{.run = job, .plan_version = version, .kind = kind, .step = step};
    made.sequence = ++command_;
    made.settled = settled;
    return {job, made};
  }
  void start(proto::JobNumber job, proto::PlanVersion version, uint64_t after_step) {
    command_ = 0;
    append({JobChanged{job, JobState::Running, "", version, after_step, 40},
            RunStarted{job, version, small_plan(job, version, 3, after_step)},
            event(job, JobEventKind::Plan, after_step),
            command(job, version, proto::CommandKind::Advance, after_step + 4, 0)});
  }
  void steps(proto::JobNumber job, proto::PlanVersion version, uint64_t from, uint64_t to) {
    for (uint64_t step = from; step <= to; ++step) {
      std::vector<Record> records;
      records.emplace_back(event(job, JobEventKind::Step, step));
      if (step % 2 == 0)
        records.emplace_back(
            command(job, version, proto::CommandKind::Advance, step + 4, command_ > 2 ? command_ - 2 : 0));
      if (step % 4 == 0) records.emplace_back(event(job, JobEventKind::Evaluation, step));
      if (step % 4 == 2) records.emplace_back(CheckpointCommitted{job, step, tensors(step, 12)});
      append(std::move(records));
    }
  }

 private:
  std::map<proto::JobNumber, uint64_t> sequence_;
  uint64_t command_ = 0;
};

}  // namespace

std::shared_ptr<const PlannedRun> small_plan(proto::JobNumber job, proto::PlanVersion version,
                                             uint32_t stage_count, uint64_t after_step) {
  auto plan = std::make_shared<PlannedRun>();
  for (uint32_t s = 0; s < stage_count; ++s) {
    auto assignment = std::make_shared<proto::AssignStage>();
    assignment->run = job;
    assignment->plan_version = version;
    assignment->seat = {s};
    assignment->stage_count = stage_count;
    assignment->training.batch_size = 32;
    assignment->training.microbatch_size = 8;
    assignment->training.clip_norm = 1.5;
    assignment->after_step = after_step;
    plan->stages.push_back({{{digest(70 + s)}, {s, s + 10}, 0.25}, assignment});
  }
  plan->training.steps = 40;
  plan->training.batch_size = 32;
  plan->microbatches = 4;
  plan->parameter_count = 6;
  plan->training.clip_norm = 1.5;
  plan->training.optimizer = plan->stages.front().assignment->training.optimizer;
  plan->training.schedule = plan->stages.front().assignment->training.schedule;
  plan->borders.evaluate_every = 4;
  plan->borders.checkpoint.steps = 4;
  plan->fingerprint = "cpu avx2";
  plan->explanation = {"three stages", std::string(300, 'e')};
  plan->relay_tickets = {proto::Secret{1}, proto::Secret{2}};
  plan->data_key = proto::Secret{3};
  plan->predicted_step = std::chrono::milliseconds(250);
  return plan;
}

std::vector<std::vector<Write>> history() {
  Author author;
  const auto submit = [&](proto::JobNumber job, size_t size) {
    JobSubmitted record{.job = job,
                        .submitter = {digest(9)},
                        .submission = proto::SubmitJob{.job = std::string(size, 'y')},
                        .unix_ms = 1234};
    author.append({record, author.event(job, JobEventKind::State, 0)});
  };
  author.lives.back().emplace_back([](Store& store) {
    return store.create_token({.id = 1, .secret_digest = digest(1), .expires_unix_ms = {}, .uses_max = {}});
  });
  for (uint64_t peer = 1; peer <= 3; ++peer)
    author.append({PrincipalAdmitted{{digest(peer)}, proto::Role::Peer, "peer", 1, 5}});
  author.append({PrincipalAdmitted{{digest(4)}, proto::Role::Peer, "peer", 1, 6},
                 PrincipalForgotten{{digest(2)}, proto::Role::Peer}});
  submit(1, 9000);
  author.start(1, 1, 0);
  author.steps(1, 1, 1, 8);
  author.restart();
  author.steps(1, 1, 9, 11);
  author.append({RunEnded{1}, JobChanged{1, JobState::Waiting, "a peer is gone", 1, 11, 40}});
  author.start(1, 2, 10);
  submit(2, 100);
  author.lives.back().emplace_back([](Store& store) { return store.revoke_token(1); });
  author.steps(1, 2, 11, 16);
  author.restart();
  author.start(2, 1, 0);
  for (uint32_t microbatch = 0; microbatch < 4; ++microbatch)
    author.append(
        {PredictionCommitted{2, {.run = 2, .microbatch = microbatch, .outputs = tensors(microbatch, 1)}},
         author.event(2, JobEventKind::Notice, microbatch)});
  author.append({RunEnded{1}, RunEnded{2},
                 ResultCommitted{1, {.job = 1, .step = 16, .tensors = tensors(16, 8)}},
                 JobChanged{1, JobState::Finished, "done", 2, 16, 16}});
  return author.lives;
}

Result<std::string> everything_in(Store& store) {
  std::string all;
  const auto add = [&](const auto&... numbers) { ((all += std::to_string(numbers) + ' '), ...); };
  const auto add_message = [&](const proto::Message& message) {
    for (const std::byte byte : proto::encode(message)) all += static_cast<char>(byte);
    all += '\n';
  };
  WEFT_TRY(const StoredState state, store.load());
  for (const auto& p : state.principals) {
    all += to_hex(p.principal.digest) + p.name;
    add(static_cast<int>(p.role), p.token, p.unix_ms);
  }
  for (const auto& [number, job] : state.jobs) {
    add(number, static_cast<int>(job.last.state), job.last.plan_version, job.last.step, job.last.steps,
        job.last_event, job.committed_step, job.evaluated_step, job.microbatch_size);
    all += job.last.reason;
    add(static_cast<int>(job.last.planned));
    add_message(*job.submitted.submission);
    for (const auto& c : job.checkpoints)
      add_message(proto::CheckpointReport{.run = c.job, .step = c.step, .tensors = c.tensors});
    for (const auto& report : job.predictions) add_message(report);
    if (job.result) add_message(*job.result);
    if (job.run) {
      add(job.run->plan_version, job.run->plan->training.steps, job.run->plan->stages.size());
      for (const auto& stage : job.run->plan->stages) add_message(*stage.assignment);
    }
    for (const auto& command : job.script) add_message(command);
    WEFT_TRY(const auto events, store.events(number, 0, 100'000));
    for (const auto& event : events) add_message(event);
  }
  WEFT_TRY(const auto tokens, store.tokens());
  for (const StoredToken& token : tokens) add(token.id, token.uses, token.revoked);
  return all;
}

}  // namespace weft::test
