// What was acknowledged is there afterwards, whoever is killed, and nothing is there by half.
#include "broker/store/sqlite_store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <iostream>

#include "proto/codec/codec.h"
#include "tests/support/scratch.h"

namespace weft::broker {
namespace {

namespace fs = std::filesystem;
using proto::JobEvent;
using proto::JobState;
using proto::Role;

template <typename T>
T value_or_fail(Result<T> result) {
  if (!result) ADD_FAILURE() << result.error().message;
  return std::move(result).value();
}
::testing::AssertionResult ok(const Status& status) {
  return status ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << status.error().message;
}
template <typename T>
::testing::AssertionResult fails_with(const Result<T>& result, ErrorCode code, std::string_view part) {
  if (result) return ::testing::AssertionFailure() << "succeeded";
  if (result.error().code == code && result.error().message.find(part) != std::string::npos)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << to_string(result.error().code) << ": " << result.error().message;
}

Digest digest(uint8_t first) {
  Digest made;
  made.bytes[0] = first;
  made.bytes[31] = 0xFF;
  return made;
}
std::vector<proto::TensorReference> tensors(uint8_t seed) {
  return {{dag::of_initializer("conv.weight"), {dag::DType::F32, {8, 3, 3, 3}}, digest(seed)},
          {dag::of_initializer("conv.weight", dag::StateSlot::M),
           {dag::DType::F32, {8, 3, 3, 3}},
           digest(static_cast<uint8_t>(seed + 1))}};
}
bool same(const std::vector<proto::TensorReference>& a, const std::vector<proto::TensorReference>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.key == y.key && x.spec == y.spec && x.sha256 == y.sha256;
  });
}
JobSubmitted submitted(proto::JobNumber job) {
  proto::SubmitJob submission{.name = "job", .job = "model: a.onnx\n", .stages = 3};
  submission.files = {{"a.onnx", {{"bytes", {}, 5}, {"", digest(1), 7}}}};
  JobSubmitted record{
      .job = job, .submitter = {digest(9)}, .submission = std::move(submission), .unix_ms = 1234};
  return record;
}
JobEvent event(proto::JobNumber job, uint64_t sequence) {
  JobEvent made{.job = job, .sequence = sequence, .unix_ms = static_cast<int64_t>(sequence)};
  made.kind = proto::JobEventKind::Step;
  made.step = sequence;
  made.loss = 0.1 * static_cast<double>(sequence);
  made.metrics = {{"accuracy", 0.5}};
  return made;
}
StoredToken token(uint64_t id, std::optional<uint32_t> uses_max = {}) {
  return {.id = id,
          .role = Role::Peer,
          .secret_digest = digest(3),
          .created_unix_ms = 100,
          .expires_unix_ms = {},
          .uses_max = uses_max};
}
PrincipalAdmitted admitted(uint8_t key, uint64_t id, Role role = Role::Peer) {
  return {.principal = {digest(key)}, .role = role, .name = "peer", .token = id, .unix_ms = key};
}
template <typename... Records>
Status append(Store& store, Records... records) {
  std::vector<Record> all;
  (all.emplace_back(std::move(records)), ...);
  return store.append(all);
}

class SqliteStoreTest : public testing::Test {
 protected:
  void reopen() {
    store_.reset();
    store_ = value_or_fail(open_sqlite_store(file_));
  }
  // Statements behind the store's back.
  void meddle(const char* sql) {
    store_.reset();
    sqlite3* handle = nullptr;
    ASSERT_EQ(sqlite3_open(file_.c_str(), &handle), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(handle, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(handle);
    sqlite3_close(handle);
  }

  test::Scratch scratch_;
  fs::path file_ = scratch_.folder() / "broker.sqlite";
  std::unique_ptr<Store> store_ = value_or_fail(open_sqlite_store(file_));
};

TEST_F(SqliteStoreTest, WhoIsForgottenIsSoInThatRoleAlone) {
  ASSERT_TRUE(ok(store_->create_token(token(2, 3))));
  ASSERT_TRUE(ok(append(*store_, admitted(1, 2), admitted(1, 2, Role::Submitter), admitted(2, 2),
                        PrincipalForgotten{{digest(1)}, Role::Peer})));
  reopen();
  const StoredState state = value_or_fail(store_->load());
  ASSERT_EQ(state.principals.size(), 2u);
  EXPECT_EQ(state.principals[0].role, Role::Submitter);
  EXPECT_EQ(state.principals[1].principal, PeerId{digest(2)});
  EXPECT_FALSE(append(*store_, admitted(1, 2))) << "its use is not given back";
}

TEST_F(SqliteStoreTest, EverythingIsThereAfterReopening) {
  StoredToken full = token(0xFEDCBA9876543210, 5);
  full.role = Role::Admin;
  full.expires_unix_ms = 999;
  full.label = "ann's, of the lab";
  ASSERT_TRUE(ok(store_->create_token(full)));
  ASSERT_TRUE(ok(store_->create_token(token(2))));
  JobEvent odd = event(7, 1);
  odd.loss = std::nan("");
  odd.gradient_norm = INFINITY;
  proto::PredictionReport prediction{.run = 7, .plan_version = 1, .microbatch = 3, .outputs = tensors(20)};
  proto::PredictionReport other{.run = 7, .plan_version = 1, .microbatch = 3, .outputs = tensors(20)};
  other.outputs.front().key.name = "\xFF: an output of another stage";
  proto::JobResult result{.job = 7, .step = 30, .tensors = tensors(40), .sample_count = 11};
  ASSERT_TRUE(ok(append(*store_, admitted(1, 2), admitted(2, full.id, Role::Admin), submitted(7), odd,
                        CheckpointCommitted{7, 10, tensors(50)},
                        CheckpointCommitted{7, 20, tensors(60), 4, proto::LocalPoint{37, {4, 0}}},
                        PredictionCommitted{7, prediction}, PredictionCommitted{7, prediction},
                        PredictionCommitted{7, other}, ResultCommitted{7, result}, event(7, 2),
                        JobChanged{7, JobState::Finished, "done \xFF", 4, 30, 40, Planned::OnceMore},
                        submitted(8), CheckpointCommitted{7, 30, tensors(70)})));
  reopen();
  const StoredState state = value_or_fail(store_->load());
  ASSERT_EQ(state.principals.size(), 2u);
  EXPECT_EQ(state.principals[0].principal, PeerId{digest(1)});
  EXPECT_EQ(state.principals[0].role, Role::Peer);
  EXPECT_EQ(state.principals[0].name, "peer");
  EXPECT_EQ(state.principals[1].role, Role::Admin);
  EXPECT_EQ(state.principals[1].token, full.id);
  EXPECT_EQ(state.principals[1].unix_ms, 2);
  ASSERT_EQ(state.jobs.size(), 1u) << "one has ended";
  EXPECT_EQ(state.next_job, 9u);
  const auto ended = value_or_fail(store_->job(7));
  ASSERT_TRUE(ended);
  const StoredJob& job = *ended;
  EXPECT_EQ(job.submitted.submitter, PeerId{digest(9)});
  EXPECT_EQ(job.submitted.unix_ms, 1234);
  EXPECT_EQ(job.submitted.submission->job, "model: a.onnx\n");
  EXPECT_EQ(job.submitted.submission->stages, 3u);
  const std::span<const std::byte> stored = job.submitted.submission.bytes().bytes;
  EXPECT_EQ(std::vector<std::byte>(stored.begin(), stored.end()), proto::encode(*job.submitted.submission));
  ASSERT_EQ(job.submitted.submission->files.size(), 1u);
  EXPECT_EQ(job.submitted.submission->files[0].pieces[0].bytes, "bytes");
  EXPECT_EQ(job.submitted.submission->files[0].pieces[1].sha256, digest(1));
  EXPECT_EQ(job.last.job, 7u);
  EXPECT_EQ(job.last.state, JobState::Finished);
  EXPECT_EQ(job.last.reason, "done \xFF");
  EXPECT_EQ(job.last.plan_version, 4u);
  EXPECT_EQ(job.last.step, 30u);
  EXPECT_EQ(job.last.steps, 40u);
  EXPECT_EQ(job.last.planned, Planned::OnceMore);
  ASSERT_EQ(job.checkpoints.size(), 2u) << "the last two";
  EXPECT_EQ(job.checkpoints[0].step, 20u);
  EXPECT_EQ(job.checkpoints[0].skipped_steps, 4u);
  ASSERT_TRUE(job.checkpoints[0].local.has_value());
  EXPECT_EQ(job.checkpoints[0].made(), 37u);
  EXPECT_EQ(job.checkpoints[0].local->skipped_steps, (std::vector<uint64_t>{4, 0}));
  EXPECT_EQ(job.checkpoints[1].made(), 30u);
  EXPECT_EQ(job.checkpoints[1].step, 30u);
  EXPECT_TRUE(same(job.checkpoints[1].tensors, tensors(70)));
  ASSERT_EQ(job.predictions.size(), 2u) << "each output of a microbatch once";
  EXPECT_EQ(job.predictions[0].microbatch, 3u);
  EXPECT_TRUE(same(job.predictions[0].outputs, tensors(20)));
  ASSERT_TRUE(job.result.has_value());
  EXPECT_EQ(job.result->step, 30u);
  EXPECT_EQ(job.result->sample_count, 11u);
  EXPECT_TRUE(same(job.result->tensors, tensors(40)));
  EXPECT_EQ(job.last_event, 2u);
  EXPECT_EQ(state.jobs.at(8).last.state, JobState::Queued);
  EXPECT_EQ(state.jobs.at(8).last_event, 0u);

  const auto events = value_or_fail(store_->events(7, 0, 100));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(std::isnan(events[0].loss));
  EXPECT_EQ(events[0].gradient_norm, INFINITY);
  EXPECT_EQ(events[1].loss, event(7, 2).loss);
  EXPECT_EQ(events[1].metrics, event(7, 2).metrics);

  const auto tokens = value_or_fail(store_->tokens());
  ASSERT_EQ(tokens.size(), 2u);
  const auto found = value_or_fail(store_->find_token(full.id));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->role, Role::Admin);
  EXPECT_EQ(found->label, full.label);
  EXPECT_EQ(found->secret_digest, digest(3));
  EXPECT_EQ(found->created_unix_ms, 100);
  EXPECT_EQ(found->expires_unix_ms, 999);
  EXPECT_EQ(found->uses_max, 5u);
  EXPECT_EQ(found->uses, 1u);
  EXPECT_FALSE(found->revoked);
  EXPECT_FALSE(value_or_fail(store_->find_token(77)).has_value());
}

TEST_F(SqliteStoreTest, OnlyItsOwnerMayReadTheFile) {
  struct stat status {};
  ASSERT_EQ(::stat(file_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(SqliteStoreTest, EventsComeInOrderAndInPortions) {
  ASSERT_TRUE(
      ok(append(*store_, submitted(1), submitted(2), event(1, 3), event(1, 1), event(2, 1), event(1, 2))));
  const auto sequences = [&](uint64_t from, size_t count) {
    std::vector<uint64_t> found;
    for (const JobEvent& one : value_or_fail(store_->events(1, from, count))) found.push_back(one.sequence);
    return found;
  };
  EXPECT_EQ(sequences(0, 100), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(sequences(2, 100), (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(sequences(0, 2), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(sequences(4, 2), (std::vector<uint64_t>{}));
  EXPECT_EQ(sequences(~uint64_t{0}, ~size_t{0}), (std::vector<uint64_t>{}));
  EXPECT_EQ(value_or_fail(store_->events(9, 0, 5)).size(), 0u);
}

TEST_F(SqliteStoreTest, AnAppendThatFailsLeavesNothing) {
  ASSERT_TRUE(ok(append(*store_, submitted(1), event(1, 1))));
  EXPECT_TRUE(fails_with(append(*store_, submitted(2), event(2, 1), event(1, 1)), ErrorCode::InvalidArgument,
                         file_.string()));
  EXPECT_TRUE(
      fails_with(append(*store_, submitted(3), event(99, 1)), ErrorCode::InvalidArgument, "contradicts"));
  EXPECT_TRUE(
      fails_with(append(*store_, submitted(3), JobChanged{99}), ErrorCode::InvalidArgument, "no job 99"));
  EXPECT_TRUE(fails_with(append(*store_, submitted(1)), ErrorCode::InvalidArgument, ""));
  const StoredState state = value_or_fail(store_->load());
  EXPECT_EQ(state.jobs.size(), 1u);
  EXPECT_TRUE(ok(append(*store_, submitted(2)))) << "and the store goes on";
}

// ---- tokens

TEST_F(SqliteStoreTest, ATokenAdmitsAsManyKeysAsItMay) {
  ASSERT_TRUE(ok(store_->create_token(token(1, 2))));
  ASSERT_TRUE(ok(append(*store_, admitted(1, 1))));
  ASSERT_TRUE(ok(append(*store_, admitted(1, 1)))) << "the same key is no further use";
  ASSERT_TRUE(ok(append(*store_, admitted(2, 1))));
  EXPECT_TRUE(
      fails_with(append(*store_, submitted(5), admitted(3, 1)), ErrorCode::PermissionDenied, "no use left"));
  EXPECT_TRUE(fails_with(append(*store_, admitted(3, 42)), ErrorCode::PermissionDenied, "no use left"))
      << "unknown";
  const StoredState state = value_or_fail(store_->load());
  EXPECT_EQ(state.principals.size(), 2u);
  EXPECT_EQ(state.jobs.size(), 0u);
  EXPECT_EQ(value_or_fail(store_->find_token(1))->uses, 2u);
  EXPECT_TRUE(fails_with(store_->create_token(token(1)), ErrorCode::InvalidArgument, "")) << "an id twice";
}

TEST_F(SqliteStoreTest, TheLastUseIsGivenOnce) {
  const auto other = value_or_fail(open_sqlite_store(file_));
  ASSERT_TRUE(ok(store_->create_token(token(1, 1))));
  EXPECT_TRUE(ok(append(*other, admitted(1, 1))));
  EXPECT_TRUE(fails_with(append(*store_, admitted(2, 1)), ErrorCode::PermissionDenied, "no use left"));
}

TEST_F(SqliteStoreTest, ARevokedTokenStaysRevoked) {
  ASSERT_TRUE(ok(store_->create_token(token(1))));
  const auto other = value_or_fail(open_sqlite_store(file_));  // weft token revoke, beside the broker
  ASSERT_TRUE(ok(other->revoke_token(1)));
  ASSERT_TRUE(ok(other->revoke_token(1))) << "again is fine";
  EXPECT_TRUE(fails_with(other->revoke_token(2), ErrorCode::NotFound, "weft token list"));
  EXPECT_TRUE(value_or_fail(store_->find_token(1))->revoked) << "the broker sees it at once";
  reopen();
  EXPECT_TRUE(value_or_fail(store_->find_token(1))->revoked);
}

// ---- processes

TEST_F(SqliteStoreTest, WhatAKilledProcessAcknowledgedIsThereAndWhole) {
  ASSERT_TRUE(ok(append(*store_, submitted(1))));
  uint64_t before = 0;
  for (int round = 0; round < 8; ++round) {
    store_.reset();
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto store = open_sqlite_store(file_);
      for (uint64_t i = before + 1;; ++i) {
        const Status done = append(**store, event(1, i), JobChanged{1, JobState::Running, "", 1, i, 0});
        if (!done || ::write(ends[1], &i, sizeof(i)) != sizeof(i)) ::_exit(1);
      }
    }
    ::close(ends[1]);
    uint64_t acknowledged = 0;
    for (int i = 0; i < 5 + 3 * round; ++i)
      ASSERT_EQ(::read(ends[0], &acknowledged, sizeof(acknowledged)),
                static_cast<ssize_t>(sizeof(acknowledged)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    while (::read(ends[0], &acknowledged, sizeof(acknowledged)) == sizeof(acknowledged)) {
    }
    ::close(ends[0]);
    reopen();
    const StoredState state = value_or_fail(store_->load());
    const StoredJob& job = state.jobs.at(1);
    EXPECT_GE(job.last_event, acknowledged);
    EXPECT_LE(job.last_event, acknowledged + 1);
    EXPECT_EQ(job.last.step, job.last_event) << "one append is there as a whole or not at all";
    EXPECT_EQ(value_or_fail(store_->events(1, 1, 10'000)).size(), job.last_event);
    before = job.last_event;
  }
}

TEST_F(SqliteStoreTest, TwoProcessesWriteAtTheSameTime) {
  ASSERT_TRUE(ok(append(*store_, submitted(1))));
  store_.reset();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto store = open_sqlite_store(file_);
    for (uint64_t i = 1; i <= 100; ++i)
      if (!store || !(*store)->create_token(token(i)) || !(*store)->revoke_token(i)) ::_exit(1);
    ::_exit(0);
  }
  reopen();
  for (uint64_t i = 1; i <= 100; ++i) ASSERT_TRUE(ok(append(*store_, event(1, i))));
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(value_or_fail(store_->tokens()).size(), 100u);
  EXPECT_EQ(value_or_fail(store_->load()).jobs.at(1).last_event, 100u);
}

TEST_F(SqliteStoreTest, SeveralProcessesMakeTheDatabaseAtTheSameTime) {
  const fs::path fresh = scratch_.folder() / "fresh.sqlite";
  std::vector<pid_t> children;
  for (uint64_t i = 1; i <= 4; ++i) {
    children.push_back(::fork());
    ASSERT_GE(children.back(), 0);
    if (children.back() != 0) continue;
    const auto store = open_sqlite_store(fresh);
    ::_exit(store && (*store)->create_token(token(i)) ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(value_or_fail(value_or_fail(open_sqlite_store(fresh))->tokens()).size(), 4u);
}

// ---- other files

TEST_F(SqliteStoreTest, ALaterFormatIsRefusedByName) {
  const std::string later = std::to_string(kStoreFormat + 1);
  meddle(("UPDATE meta SET value = " + later).c_str());
  const auto opened = open_sqlite_store(file_);
  EXPECT_TRUE(fails_with(opened, ErrorCode::VersionMismatch, "format " + later));
  EXPECT_TRUE(fails_with(opened, ErrorCode::VersionMismatch, file_.string()));
}

TEST_F(SqliteStoreTest, AnotherProgramsDatabaseIsLeftAlone) {
  const fs::path other = scratch_.folder() / "other.sqlite";
  sqlite3* handle = nullptr;
  ASSERT_EQ(sqlite3_open(other.c_str(), &handle), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(handle, "CREATE TABLE photos (x)", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(handle);
  EXPECT_TRUE(fails_with(open_sqlite_store(other), ErrorCode::Corrupted, "another program"));
}

TEST_F(SqliteStoreTest, GarbageIsRefusedByName) {
  for (const std::string& content : {std::string("not a database at all"), std::string(100'000, '\xA5'),
                                     "SQLite format 3" + std::string(1, '\0') + std::string(5000, '\x11')}) {
    const fs::path garbage = scratch_.write("garbage.sqlite", content);
    const auto opened = open_sqlite_store(garbage);
    EXPECT_TRUE(fails_with(opened, ErrorCode::Corrupted, garbage.string()));
  }
  EXPECT_TRUE(
      fails_with(open_sqlite_store(scratch_.folder() / "no" / "folder"), ErrorCode::NotFound, "folder"));
  EXPECT_FALSE(open_sqlite_store(scratch_.folder()).has_value()) << "a folder is no database";
}

TEST_F(SqliteStoreTest, DamageIsFoundWhenTheFileIsOpened) {
  std::vector<Record> records;
  records.emplace_back(submitted(1));
  for (uint64_t i = 1; i <= 2000; ++i) records.emplace_back(event(1, i));
  ASSERT_TRUE(ok(store_->append(records)));
  store_.reset();
  std::string bytes;
  {
    std::ifstream in(file_, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  ASSERT_GT(bytes.size(), 100'000u);
  std::string holed = bytes;
  holed.replace(holed.size() / 2, 8192, std::string(8192, '\xFF'));
  EXPECT_TRUE(fails_with(open_sqlite_store(scratch_.write("holed.sqlite", holed)), ErrorCode::Corrupted,
                         "holed.sqlite"));
  const auto shorter = open_sqlite_store(scratch_.write("short.sqlite", bytes.substr(0, bytes.size() / 2)));
  EXPECT_TRUE(fails_with(shorter, ErrorCode::Corrupted, "short.sqlite"));
}

TEST_F(SqliteStoreTest, OfALargeFileOnlyPastEventsAreNotLookedAtBeforeTheyAreRead) {
  std::vector<Record> records;
  records.emplace_back(submitted(1));
  for (uint64_t i = 1; i <= 2000; ++i) records.emplace_back(event(1, i));
  ASSERT_TRUE(ok(store_->append(records)));
  store_.reset();
  std::string bytes;
  {
    std::ifstream in(file_, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto holed = [&](size_t at, size_t size) {
    std::string damaged = bytes;
    damaged.replace(at, size, std::string(size, '\xFF'));
    return open_sqlite_store(scratch_.write("holed.sqlite", damaged), {.whole_check_size_max = 0});
  };
  const auto events = holed(bytes.size() / 2, 8192);
  ASSERT_TRUE(events) << events.error().message;
  EXPECT_EQ(value_or_fail((*events)->load()).jobs.at(1).last_event, 2000u);
  EXPECT_TRUE(fails_with((*events)->events(1, 1, 10'000), ErrorCode::Corrupted, "holed.sqlite"));
  // The job's own row, which every broker starts from.
  const size_t job = bytes.find("a.onnx");
  ASSERT_NE(job, std::string::npos);
  EXPECT_TRUE(fails_with(holed(job / 4096 * 4096, 4096), ErrorCode::Corrupted, "holed.sqlite"));
}

TEST_F(SqliteStoreTest, ARecordThatMakesNoSenseIsDamage) {
  ASSERT_TRUE(ok(append(*store_, submitted(1), event(1, 1))));
  meddle("UPDATE events SET event = x'FFFF'");
  reopen();
  EXPECT_TRUE(fails_with(store_->events(1, 0, 10), ErrorCode::Corrupted, file_.string()));
  EXPECT_TRUE(store_->load().has_value()) << "events are not read for it";
  meddle("UPDATE jobs SET submission = (SELECT event FROM events)");
  reopen();
  EXPECT_TRUE(fails_with(store_->load(), ErrorCode::Corrupted, file_.string()));
  EXPECT_TRUE(fails_with(store_->load(), ErrorCode::Corrupted, file_.string())) << "asked again";
}

// ---- many events

TEST_F(SqliteStoreTest, LoadingDoesNotReadTheEvents) {
  ASSERT_TRUE(ok(append(*store_, submitted(1), submitted(2))));
  uint64_t sequence = 0;
  for (const uint64_t size : {uint64_t{10'000}, uint64_t{100'000}}) {
    while (sequence < size) {
      std::vector<Record> records;
      for (int i = 0; i < 5000; ++i) {
        ++sequence;
        records.emplace_back(event(1 + sequence % 2, sequence));
      }
      ASSERT_TRUE(ok(store_->append(records)));
    }
    const auto now = [] { return std::chrono::steady_clock::now(); };
    const auto since = [&](auto start) {
      return std::chrono::duration<double, std::milli>(now() - start).count();
    };
    auto start = now();
    reopen();
    const double opened = since(start);
    start = now();
    const StoredState state = value_or_fail(store_->load());
    std::cout << size << " events: opened and checked in " << opened << " ms, loaded in " << since(start)
              << " ms\n";
    EXPECT_EQ(std::max(state.jobs.at(1).last_event, state.jobs.at(2).last_event), size);
  }
}

}  // namespace
}  // namespace weft::broker
