// A job that serves, from its file to its stages: what is assigned computes what the model does on one
// machine, and whatever is wrong with a submission is said.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "broker/place/assembly.h"
#include "broker/service/plan_process.h"
#include "broker/service/planner.h"
#include "broker/service/random_secret.h"
#include "broker/service/submitted_files.h"
#include "dag/op_table.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/backend/reference/reference_kernels.h"
#include "peer/state.h"
#include "proto/codec/codec.h"
#include "serve/stage.h"
#include "tests/onnx/models.h"
#include "tests/planning/submitted.h"
#include "tests/text/samples.h"
#include "tests/train/reference_files.h"
#include "train/submission.h"

namespace weft::broker {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = WEFT_SOURCE_DIR "/examples/gpt/model.onnx";

class ServedJobs : public ::testing::Test {
 protected:
  // A job file beside a copy of the model.
  fs::path write_job(const std::string& more = "", const std::string& serve = "name: gpt") {
    const fs::path folder = jobs_.folder() / "mine";
    fs::create_directories(folder);
    fs::copy_file(kModel, folder / "model.onnx", fs::copy_options::skip_existing);
    std::ofstream(folder / "job.yaml") << "model: model.onnx\ntask: serve\nserve: {" << serve << "}\n"
                                       << more;
    return folder / "job.yaml";
  }
  proto::SubmitJob submit(const std::string& more = "", const std::string& serve = "name: gpt") {
    return jobs_.submit_file(write_job(more, serve));
  }
  JobPlanner planner() { return JobPlanner(jobs_.jobs(), jobs_.blobs(), uint64_t{1} << 20); }
  Result<std::shared_ptr<const PlannedRun>> plan(const proto::SubmitJob& submission, size_t peers = 4) {
    return planner().plan(test::request_for(1, submission, peers), true);
  }

  // What the stages of a run make of tokens, each with nothing but its own tensors: logits of the last.
  std::vector<float> logits(const PlannedRun& run, const std::vector<int64_t>& tokens);

  test::SubmittedJobs jobs_;
};

// A stage as a peer makes it of its assignment.
struct Worker {
  std::shared_ptr<const dag::Incremental> model;
  std::unique_ptr<serve::Stage> stage;
};
Worker make_worker(const proto::AssignStage& assigned, const storage::BlobStore& blobs,
                   peer::Backend& backend) {
  dag::Weights weights;
  for (const proto::TensorReference& tensor : assigned.tensors) {
    const auto bytes = blobs.read(tensor.sha256, uint64_t{1} << 30);
    EXPECT_TRUE(bytes.has_value());
    weights.emplace(tensor.key.name, dag::Tensor(tensor.spec, *bytes));
  }
  auto derived = dag::Incremental::derive(assigned.serve->graph, dag::op_table(),
                                          {.tokens = assigned.serve->tokens,
                                           .logits = assigned.serve->logits,
                                           .evaluate = peer::evaluate_reference,
                                           .weights = &weights});
  EXPECT_TRUE(derived.has_value()) << derived.error().message;
  Worker worker;
  worker.model = std::make_shared<const dag::Incremental>(std::move(*derived));
  auto stage = serve::Stage::create(worker.model, assigned.serve->ranges, weights,
                                    std::make_shared<peer::State>(backend), assigned.serve->rows_max);
  EXPECT_TRUE(stage.has_value()) << stage.error().message;
  worker.stage = std::move(*stage);
  return worker;
}

std::vector<float> ServedJobs::logits(const PlannedRun& run, const std::vector<int64_t>& tokens) {
  const auto backend = peer::make_cpu_backend({.threads = 1, .pin = false}).value();
  std::vector<Worker> workers;
  for (const PlannedStage& stage : run.stages)
    workers.push_back(make_worker(*stage.assignment, jobs_.blobs(), *backend));
  const auto count = static_cast<int64_t>(tokens.size());
  const serve::PassPiece piece{.sequence = 1, .first = 0, .count = count, .logits = 1, .expected = 0};
  const dag::RowSpec in = workers[0].model->tokens();
  serve::RowTensors rows;
  rows[in.name] = dag::from_int64s({in.dtype, {count, 1}}, tokens);
  const auto run_range = [&](size_t stage, size_t range) {
    auto next = workers[stage].stage->run(range, {&piece, 1}, rows);
    EXPECT_TRUE(next.has_value()) << next.error().message;
    rows = std::move(*next);
  };
  for (size_t s = 0; s < workers.size(); ++s) run_range(s, 0);
  if (workers.size() > 1) run_range(0, 1);
  const auto values = rows.at(workers[0].model->logits().name).as<float>();
  return {values.begin(), values.end()};
}

std::set<uint32_t> linked_to(const proto::AssignStage& stage) {
  std::set<uint32_t> seats;
  for (const proto::LinkRoute& link : stage.links) seats.insert(link.seat.stage);
  return seats;
}

TEST_F(ServedJobs, TheirStagesComputeWhatOneMachineDoes) {
  const std::vector<int64_t> tokens = {84, 104, 101, 32, 99, 97, 116};
  std::vector<float> wanted;
  for (const uint32_t count : {1, 2, 3}) {
    SCOPED_TRACE(count);
    const auto submission = submit("placement: {stages: " + std::to_string(count) + "}\n");
    const auto run = plan(submission);
    ASSERT_TRUE(run.has_value()) << run.error().message;
    ASSERT_EQ((*run)->stages.size(), count);
    for (uint32_t s = 0; s < count; ++s) {
      const proto::AssignStage& stage = *(*run)->stages[s].assignment;
      ASSERT_TRUE(stage.serve.has_value());
      EXPECT_TRUE(stage.programs.empty());
      EXPECT_GE(stage.serve->passes_max, count);
      EXPECT_EQ(stage.after_step, 0u);
      EXPECT_EQ(linked_to(stage), count == 1   ? std::set<uint32_t>{}
                                  : count == 2 ? (std::set<uint32_t>{1 - s})
                                               : (std::set<uint32_t>{(s + 1) % 3, (s + 2) % 3}));
      // As it travels.
      const auto decoded = proto::decode((*run)->stages[s].assignment.bytes().bytes);
      ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
    }
    const std::vector<float> made = logits(**run, tokens);
    if (wanted.empty()) wanted = made;
    EXPECT_EQ(made.size(), 256u);
    EXPECT_EQ(made, wanted);
  }
}

TEST_F(ServedJobs, AStageHasNoWeightThatItDoesNotRead) {
  const auto run = plan(submit("placement: {stages: 3}\n"));
  ASSERT_TRUE(run.has_value()) << run.error().message;
  std::map<std::string, int> holders;
  size_t whole = 0;
  for (const PlannedStage& stage : (*run)->stages) {
    whole = stage.assignment->serve->graph->initializers().size();
    for (const proto::TensorReference& tensor : stage.assignment->tensors) ++holders[tensor.key.name];
  }
  EXPECT_EQ(holders.size(), whole);
  size_t alone = 0;
  for (const auto& [name, count] : holders) alone += count == 1;
  EXPECT_GE(alone + 2, whole);  // but for the mask, and what both ends read
}

TEST_F(ServedJobs, ThePlanSaysWhatIsServed) {
  const auto run = plan(submit("", "name: gpt, context: 128, sequences_max: 3, rows_max: 16"));
  ASSERT_TRUE(run.has_value()) << run.error().message;
  const proto::ServedModel& served = (*run)->served;
  EXPECT_EQ(served.name, "gpt");
  EXPECT_EQ(served.tokenizer, "");
  EXPECT_EQ(served.context, 128u);
  EXPECT_EQ(served.vocabulary, 256u);
  EXPECT_EQ(served.sequences_max, 3u);
  EXPECT_EQ(served.positions_max, 3u * 128);
  EXPECT_TRUE(served.fingerprint.starts_with("weft-")) << served.fingerprint;
  EXPECT_EQ((*run)->training.steps, 0u);
  EXPECT_EQ((*run)->forward_microbatches, 0u);
  EXPECT_GT((*run)->predicted_step.count(), 0);
  const proto::ServeProgram& program = *(*run)->stages[0].assignment->serve;
  EXPECT_EQ(program.rows_max, 16u);
  EXPECT_EQ(program.sequences_max, 3u);
  EXPECT_EQ(program.positions_max, 3u * 128);
  EXPECT_EQ(program.kept_positions_max, (*run)->stages.size() > 1 ? 3u * 128 : 0);
  EXPECT_NE((*run)->explanation.at(1).find("3 sequences of 128"), std::string::npos)
      << (*run)->explanation.at(1);
}

TEST_F(ServedJobs, AreFedByNobody) {
  JobPlanner planning = planner();
  const auto submission = submit();
  const auto wanted = planning.check(submission);
  ASSERT_TRUE(wanted.has_value()) << wanted.error().message;
  EXPECT_EQ(wanted->peer_minor, proto::kProtocolMinorOfServing);
  ASSERT_TRUE(planning.open(1, submission, 1));
  const proto::JobFeed feed = planning.feed();
  EXPECT_TRUE(feed.serves);
  EXPECT_TRUE(feed.programs.empty());
  EXPECT_EQ(feed.steps, 0u);
  const auto run = planning.plan(test::request_for(1, submission, 2), true);
  ASSERT_TRUE(run.has_value()) << run.error().message;
  EXPECT_EQ(feed.initial.size(), (*run)->stages[0].assignment->serve->graph->initializers().size());
}

TEST_F(ServedJobs, GoToOtherPeersAsTheyAre) {
  const auto submission = submit("placement: {stages: 2}\n");
  StartPlanning request = test::request_for(1, submission, 4);
  const auto run = planner().plan(request, true);
  ASSERT_TRUE(run.has_value()) << run.error().message;
  request.previous = *run;
  request.plan_version = 2;
  request.placed = {3, 2};
  const auto again = place_stages_again(request, nullptr, 0, random_secret);
  ASSERT_TRUE(again.has_value()) << again.error().message;
  EXPECT_EQ((*again)->served.name, "gpt");
  for (size_t s = 0; s < 2; ++s) {
    const proto::AssignStage &before = *(*run)->stages[s].assignment,
                             &after = *(*again)->stages[s].assignment;
    EXPECT_EQ((*again)->stages[s].peer, request.candidates[request.placed[s]].peer);
    EXPECT_EQ(after.plan_version, 2u);
    EXPECT_EQ(after.serve->ranges, before.serve->ranges);
    EXPECT_EQ(linked_to(after), linked_to(before));
    ASSERT_EQ(after.tensors.size(), before.tensors.size());
    for (size_t i = 0; i < before.tensors.size(); ++i)  // a stage that attends alone has none
      EXPECT_EQ(after.tensors[i].sha256, before.tensors[i].sha256);
  }
  EXPECT_EQ(logits(**again, {1, 2, 3}), logits(**run, {1, 2, 3}));
}

TEST_F(ServedJobs, WhatTheyAreCalledAndSpeakLiesBesideTheModel) {
  write_job();
  const fs::path folder = jobs_.folder() / "mine";
  text::testing::Json file = text::testing::byte_level_file();
  std::ofstream(folder / "tokenizer.json") << file.dump();
  std::ofstream(folder / "tokenizer_config.json") << "{}";
  const auto opened = train::open_job(folder / "job.yaml", {});
  ASSERT_TRUE(opened.has_value());
  const auto refused = train::ready_job(*opened);
  ASSERT_FALSE(refused.has_value());  // more tokens than the model has
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(refused.error().message.find("the model only 256"), std::string::npos) << refused.error().message;
}

TEST_F(ServedJobs, ATokenizerTravelsAndIsLookedAtAgain) {
  auto submission = submit("", "name: gpt, chat_template: plain");
  // As a client that says what it likes would send it.
  const auto with_tokenizer = [&](const std::string& bytes) {
    proto::SubmitJob changed = submission;
    changed.job = "model: " + std::string(changed.files.front().path) +
                  "\ntask: serve\nserve: {name: gpt, tokenizer: tokenizer/t.json}\n";
    changed.files.push_back(
        {.path = "tokenizer/t.json", .pieces = {{.bytes = bytes, .sha256 = {}, .size = bytes.size()}}});
    return changed;
  };
  const auto broken = planner().check(with_tokenizer("{\"model\": 3"));
  ASSERT_FALSE(broken.has_value());
  EXPECT_EQ(broken.error().code, ErrorCode::Corrupted) << broken.error().message;
  const auto large = plan(with_tokenizer(text::testing::byte_level_file().dump()));
  ASSERT_FALSE(large.has_value());
  EXPECT_EQ(large.error().code, ErrorCode::InvalidArgument) << large.error().message;
  proto::SubmitJob missing = with_tokenizer("");
  missing.files.pop_back();
  const auto denied = planner().check(missing);
  ASSERT_FALSE(denied.has_value());
  EXPECT_EQ(denied.error().code, ErrorCode::PermissionDenied) << denied.error().message;
  proto::SubmitJob named = submission;
  named.job = "model: " + std::string(named.files.front().path) +
              "\ntask: serve\nserve: {name: gpt, chat_template: none-such}\n";
  EXPECT_EQ(planner().check(named).error().code, ErrorCode::NotFound);
}

TEST_F(ServedJobs, ASmallTokenizerIsPacked) {
  const fs::path folder = write_job().parent_path();
  text::testing::Json file = text::testing::byte_level_file();
  file["model"]["merges"] = text::testing::Json::array();
  for (auto entry = file["model"]["vocab"].begin(); entry != file["model"]["vocab"].end();)
    entry = entry.value().get<int>() >= 256 ? file["model"]["vocab"].erase(entry) : std::next(entry);
  file["added_tokens"] = text::testing::Json::array();
  std::ofstream(folder / "tokenizer.json") << file.dump();
  const auto submission = jobs_.submit_file(folder / "job.yaml");
  const auto run = plan(submission);
  ASSERT_TRUE(run.has_value()) << run.error().message;
  EXPECT_EQ((*run)->served.tokenizer, "tokenizer/tokenizer.json");
  const auto text = read_submitted(submission, (*run)->served.tokenizer, jobs_.blobs(), 1 << 20);
  ASSERT_TRUE(text.has_value()) << text.error().message;
  EXPECT_EQ(*text, file.dump());
  EXPECT_EQ(read_submitted(submission, (*run)->served.tokenizer, jobs_.blobs(), 10).error().code,
            ErrorCode::OutOfRange);
}

TEST_F(ServedJobs, WhoGuessesIsToldToTheEntryAlone) {
  using Kind = plan::DraftKind;
  for (const auto& [key, kind] :
       {std::pair{"none", Kind::None}, {"ngram", Kind::Ngram}, {"coin:0.75", Kind::Coin}}) {
    SCOPED_TRACE(key);
    const auto submission =
        submit("placement: {stages: 3}\n", std::string("name: gpt, draft: \"") + key + "\"");
    EXPECT_EQ(planner().check(submission)->peer_minor, proto::kProtocolMinorOfServing);
    const auto run = plan(submission);
    ASSERT_TRUE(run.has_value()) << run.error().message;
    ASSERT_EQ((*run)->stages.size(), 3u);
    for (size_t s = 0; s < 3; ++s) {
      const auto& draft = (*run)->stages[s].assignment->serve->draft;
      ASSERT_EQ(draft.has_value(), s == 0 && kind != Kind::None);
      if (!draft) continue;
      EXPECT_EQ(draft->kind, kind);
      EXPECT_GE(draft->passes_shared, 1u);
      EXPECT_LE(draft->passes_shared, (*run)->stages[s].assignment->serve->passes_max);
      EXPECT_EQ(draft->right, kind == Kind::Coin ? 0.75 : 0);
    }
    const std::string& said = (*run)->explanation.at(3);
    EXPECT_EQ(said.starts_with("with guesses right 8 of 10 times: "), kind != Kind::None) << said;
  }
}

TEST_F(ServedJobs, AModelThatGuessesReachesTheEntryAlone) {
  const fs::path folder = write_job().parent_path();
  fs::copy_file(kModel, folder / "small.onnx");
  const auto plain = plan(submit("placement: {stages: 2}\n"));
  const auto submission = submit("placement: {stages: 2}\n", "name: gpt, draft: small.onnx");
  ASSERT_TRUE(plain.has_value());
  EXPECT_NE(submission.job.find("draft/small.onnx"), std::string::npos) << submission.job;
  EXPECT_EQ(planner().check(submission)->peer_minor, proto::kProtocolMinorOfDrafts);
  const auto run = plan(submission);
  ASSERT_TRUE(run.has_value()) << run.error().message;
  EXPECT_EQ((*run)->served.fingerprint, (*plain)->served.fingerprint) << "no text hangs on who guesses";
  const auto drafts_of = [](const proto::AssignStage& stage) {
    return std::count_if(stage.tensors.begin(), stage.tensors.end(),
                         [](const auto& tensor) { return tensor.key.name.starts_with("draft/"); });
  };
  const proto::AssignStage& entry = *(*run)->stages[0].assignment;
  ASSERT_TRUE(entry.serve->draft.has_value());
  EXPECT_EQ(entry.serve->draft->kind, plan::DraftKind::Decoder);
  EXPECT_EQ(drafts_of(entry), static_cast<std::ptrdiff_t>(entry.serve->draft->graph->initializers().size()));
  EXPECT_FALSE((*run)->stages[1].assignment->serve->draft.has_value());
  EXPECT_EQ(drafts_of(*(*run)->stages[1].assignment), 0);
  const auto decoded = proto::decode((*run)->stages[0].assignment.bytes().bytes);
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  for (const proto::TensorReference& tensor : entry.tensors)
    EXPECT_TRUE(jobs_.blobs().size(tensor.sha256).has_value()) << tensor.key.name;
  EXPECT_EQ(logits(**run, {1, 2, 3}), logits(**plain, {1, 2, 3}));
  proto::SubmitJob missing = submission;
  std::erase_if(missing.files, [](const auto& file) { return file.path == "draft/small.onnx"; });
  EXPECT_EQ(planner().check(missing).error().code, ErrorCode::PermissionDenied);
}

// What follows a token, whatever stands before it.
std::string bigrams(int64_t vocabulary, int64_t length) {
  onnx::testing::ModelMaker maker;
  maker.input("input_ids", {1, length}, onnx::pb::TensorProto::INT64);
  maker.weight("table", {vocabulary, 3});
  maker.weight("head", {3, vocabulary});
  maker.node("Gather", {"table", "input_ids"}, {"rows"});
  maker.node("MatMul", {"rows", "head"}, {"logits"});
  maker.output("logits");
  return maker.bytes();
}

TEST_F(ServedJobs, AModelThatGuessesHasTheSameTokens) {
  const fs::path folder = write_job("", "name: gpt, draft: small.onnx").parent_path();
  const auto ready = [&](const std::string& draft) {
    onnx::testing::write_bytes(folder / "small.onnx", draft);
    const auto opened = train::open_job(folder / "job.yaml", {});
    EXPECT_TRUE(opened.has_value()) << opened.error().message;
    return train::ready_job(*opened);
  };
  const auto refused = ready(bigrams(17, 128));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument) << refused.error().message;
  EXPECT_NE(refused.error().message.find("it has 17 tokens, and the model that it guesses for 256"),
            std::string::npos)
      << refused.error().message;
  EXPECT_TRUE(ready(bigrams(256, 128))->start.warnings.empty());
  const auto shorter = ready(bigrams(256, 5));
  ASSERT_TRUE(shorter.has_value()) << shorter.error().message;
  EXPECT_EQ(shorter->start.warnings,
            std::vector<std::string>{"the draft has 5 positions: behind them nothing "
                                     "is guessed"});
  const auto run = plan(jobs_.submit_file(folder / "job.yaml"), 1);
  ASSERT_TRUE(run.has_value()) << run.error().message;
  const auto& tensors = (*run)->stages[0].assignment->tensors;
  for (const char* name : {"draft/table", "draft/head"})
    EXPECT_EQ(std::count_if(tensors.begin(), tensors.end(),
                            [&](const auto& tensor) { return tensor.key.name == name; }),
              1)
        << name;
}

// As if a client had not looked.
TEST_F(ServedJobs, ABrokerLooksAtTheModelThatGuessesItself) {
  const fs::path folder = write_job("", "name: gpt, draft: small.onnx").parent_path();
  onnx::testing::write_bytes(folder / "small.onnx", bigrams(256, 128));
  proto::SubmitJob submission = jobs_.submit_file(folder / "job.yaml");
  const std::string other = bigrams(17, 128);
  for (proto::PackedFile& file : submission.files)
    if (file.path == "draft/small.onnx") file.pieces = {{.bytes = other, .sha256 = {}, .size = other.size()}};
  const auto run = plan(submission, 1);
  ASSERT_FALSE(run.has_value());
  EXPECT_EQ(run.error().code, ErrorCode::InvalidArgument) << run.error().message;
  EXPECT_NE(run.error().message.find("it has 17 tokens"), std::string::npos) << run.error().message;
}

TEST_F(ServedJobs, AModelThatGuessesIsADecoder) {
  for (const auto& [name, message] :
       {std::pair{"resnet_small", "input"}, {"gru", "no caches can be made of this model"}}) {
    SCOPED_TRACE(name);
    const fs::path folder =
        write_job("", std::string("name: gpt, draft: ") + name + "/model.onnx").parent_path();
    fs::create_directories(folder / name);
    test::unpack_case(name, folder / name);
    const auto opened = train::open_job(folder / "job.yaml", {});
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    const auto ready = train::ready_job(*opened);
    ASSERT_FALSE(ready.has_value());
    EXPECT_EQ(ready.error().code, ErrorCode::Unsupported) << ready.error().message;
    EXPECT_NE(ready.error().message.find(message), std::string::npos) << ready.error().message;
    EXPECT_NE(ready.error().message.find("job.yaml:3:"), std::string::npos) << ready.error().message;
  }
}

TEST_F(ServedJobs, WhatIsNoDecoderIsRefusedBeforeItIsSent) {
  const fs::path folder = jobs_.folder() / "case";
  fs::create_directories(folder);
  test::unpack_case("resnet_small", folder);
  std::ofstream(folder / "job.yaml") << "model: model.onnx\ntask: serve\nserve: {name: resnet}\n";
  const auto opened = train::open_job(folder / "job.yaml", {});
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  const auto ready = train::ready_job(*opened);
  ASSERT_FALSE(ready.has_value());
  EXPECT_EQ(ready.error().code, ErrorCode::Unsupported) << ready.error().message;
}

TEST_F(ServedJobs, OfARecurrentModelIsSaidWhatServesIt) {
  const fs::path folder = jobs_.folder() / "case";
  fs::create_directories(folder);
  test::unpack_case("gru", folder);
  std::ofstream(folder / "job.yaml") << "model: model.onnx\ntask: serve\nserve: {name: gru}\n";
  const auto opened = train::open_job(folder / "job.yaml", {});
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  const auto ready = train::ready_job(*opened);
  ASSERT_FALSE(ready.has_value());
  EXPECT_EQ(ready.error().code, ErrorCode::Unsupported) << ready.error().message;
  EXPECT_NE(ready.error().message.find("`weft serve` on one machine"), std::string::npos)
      << ready.error().message;
}

// In a process of its own, and whatever was submitted: an error with words, and the process goes on.
TEST_F(ServedJobs, AModelThatIsDamagedIsAnErrorWithWords) {
  auto process = PlanProcess::start(jobs_.process_options());
  ASSERT_TRUE(process.has_value());
  const proto::SubmitJob right = submit();
  const auto ask = [&](const proto::SubmitJob& submission) {
    return (*process)->ask(test::request_for(1, submission, 2), {proto::PlanTask::Plan, true},
                           std::chrono::seconds(60));
  };
  size_t refused = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed, 5);
    proto::SubmitJob wrong = right;
    auto& pieces = wrong.files.front().pieces;
    proto::FilePiece& piece = pieces[rng.below(pieces.size())];
    if (piece.bytes.empty()) continue;
    for (int i = 0; i < 4; ++i)
      piece.bytes[rng.below(piece.bytes.size())] = static_cast<char>(rng.below(256));
    const auto reply = ask(wrong);
    if (reply) continue;
    ++refused;
    EXPECT_FALSE(reply.error().message.empty());
  }
  const auto reply = ask(right);
  ASSERT_TRUE(reply.has_value()) << reply.error().message;
  EXPECT_TRUE(reply->feed->serves);
  EXPECT_EQ(reply->run->served.name, "gpt");
  EXPECT_TRUE(reply->run->stages.front().assignment->serve.has_value());
  EXPECT_GT(refused, 0u);
}

TEST_F(ServedJobs, PeersThatAreTooSmallAreToldInNumbers) {
  const auto submission = submit();
  StartPlanning request = test::request_for(1, submission, 2);
  std::vector<plan::DeviceView> devices(request.cluster.devices());
  for (plan::DeviceView& device : devices) device.memory = {1 << 20};
  request.cluster = plan::ClusterView(std::move(devices));
  const auto run = planner().plan(request, true);
  ASSERT_FALSE(run.has_value());
  EXPECT_EQ(run.error().code, ErrorCode::Infeasible);
  EXPECT_NE(run.error().message.find("the 2 peers have"), std::string::npos) << run.error().message;
}

}  // namespace
}  // namespace weft::broker
