// Blobs from peers that are honest, gone, silent or lie, over real sockets of 127.0.0.1. The clock is the
// test's.
#include "peer/service/blob_sources.h"

#include <gtest/gtest.h>

#include "net/listener.h"
#include "proto/codec/codec.h"
#include "security/identity.h"
#include "tests/links/blobs.h"

namespace weft::peer::test {
namespace {

using std::chrono::seconds;

constexpr Duration kPatience = seconds(120);  // only a hang reaches it

// A peer that does with a request what the test says.
struct Giver {
  using Script = std::function<void(Giver&, const proto::GetBlob&)>;
  Giver(net::Loop& loop, Script what) : script(std::move(what)) {
    net::ListenOptions options;
    options.identity = identity.get();
    listener = std::move(*net::Listener::open(
        loop, {"127.0.0.1", 0}, options, [this](const net::ConnectionPtr& accepted) { take(accepted); }));
  }
  void take(const net::ConnectionPtr& accepted) {
    ++accepted_count;
    connection = accepted;
    is_closed = false;
    connection->start({.on_frame =
                           [this](const net::InFrame& frame) {
                             const auto message = proto::decode(frame.payload.span());
                             requests.push_back(std::get<proto::GetBlob>(*message));
                             script(*this, requests.back());
                           },
                       .on_closed = [this](const Error&) { is_closed = true; }});
  }
  void say(const proto::Message& message) { connection->send(message_frame(message)); }
  void chunk(uint64_t request, const Blob& bytes) {
    connection->send({.kind = static_cast<uint8_t>(proto::FrameKind::Chunk),
                      .head = proto::encode_chunk_head(request),
                      .body = shared(bytes)});
  }
  void give(uint64_t request, const Blob& blob) {
    say(proto::BlobAnswer{.request = request, .size = blob.size()});
    chunk(request, blob);
  }
  std::string address() const { return net::to_string(listener->endpoint()); }
  std::shared_ptr<const proto::BlobSource> source() const {
    return std::make_shared<proto::BlobSource>(
        proto::BlobSource{.peer = identity->id(), .addresses = {address()}});
  }

  Script script;
  std::unique_ptr<security::Identity> identity = std::move(*security::Identity::generate());
  std::unique_ptr<net::Listener> listener;
  net::ConnectionPtr connection;
  std::vector<proto::GetBlob> requests;
  int accepted_count = 0;
  bool is_closed = false;
};

// One unit of a packed blob.
Blob unit_of(const Blob& blob, const Blob& base = {}) { return storage::Packer().pack(blob, base); }

class BlobSourcesTest : public ::testing::Test {
 protected:
  BlobSourcesTest() { begin({}); }
  void begin(BlobSources::Options options) {
    options.loop = &loop_;
    options.identity = identity_.get();
    options.now = [this] { return now_; };
    sources_.emplace(std::move(options));
  }
  using Got = std::optional<Result<Blob>>;
  std::shared_ptr<Got> get(const proto::BlobSource& source, const Blob& blob,
                           std::optional<BulkTransfers::Base> base = {}, uint64_t rate = 0) {
    const auto got = std::make_shared<Got>();
    sources_->get(source, {storage::sha256(blob), blob.size(), rate, std::move(base)},
                  [got](Result<Blob> bytes) {
                    EXPECT_FALSE(*got) << "told twice";
                    *got = std::move(bytes);
                  });
    return got;
  }
  std::shared_ptr<Got> get(const Giver& giver, const Blob& blob) { return get(*giver.source(), blob); }
  bool run_until(const std::function<bool()>& done) { return loop_.run_until(kPatience, done); }
  std::optional<ErrorCode> error_of(const std::shared_ptr<Got>& got) {
    EXPECT_TRUE(run_until([&] { return got->has_value(); }));
    if (!*got || **got) return std::nullopt;
    message_ = (**got).error().message;
    return (**got).error().code;
  }
  bool is_given(const std::shared_ptr<Got>& got, const Blob& blob) {
    return run_until([&] { return got->has_value(); }) && **got && ***got == blob;
  }
  void pass(int count) {
    for (int i = 0; i < count; ++i) {
      now_ += seconds(1);
      sources_->on_tick();
    }
  }
  // Of two requests the first has this for an answer: both fail, and the connection ends.
  void expect_lie(const Giver::Script& script) {
    Giver liar(loop_, script);
    const auto first = get(liar, blob_), second = get(liar, other_);
    EXPECT_EQ(error_of(first), ErrorCode::Corrupted) << message_;
    EXPECT_EQ(error_of(second), ErrorCode::Corrupted) << message_;
    EXPECT_EQ(sources_->sources(), 0u);
    EXPECT_TRUE(run_until([&] { return liar.is_closed; }));
  }
  static bool is_first(const proto::GetBlob& request) { return request.request == 1; }

  net::Loop loop_;
  std::unique_ptr<security::Identity> identity_ = std::move(*security::Identity::generate());
  Instant now_ = Instant{} + std::chrono::hours(1);
  const Blob blob_ = random_blob(1, 100'000), other_ = random_blob(2, 50'000);
  std::optional<BlobSources> sources_;
  std::string message_;
};

// ---- the honest

TEST_F(BlobSourcesTest, AsksOverOneConnectionForWhatIsWanted) {
  const Blob base = random_blob(3, blob_.size());
  const net::SharedBytes kept = shared(base);
  Giver giver(loop_, [&](Giver& at, const proto::GetBlob& request) {
    at.give(request.request, request.sha256 == storage::sha256(blob_) ? blob_ : other_);
  });
  const auto first = get(*giver.source(), blob_, {{storage::sha256(base), kept.owner, kept.bytes}}, 5'000);
  const auto second = get(giver, other_);
  EXPECT_TRUE(is_given(first, blob_));
  EXPECT_TRUE(is_given(second, other_));
  EXPECT_TRUE(is_given(get(giver, blob_), blob_));
  EXPECT_EQ(giver.accepted_count, 1);
  ASSERT_EQ(giver.requests.size(), 3u);
  EXPECT_EQ(giver.requests[0].rate, 5'000u);
  EXPECT_EQ(giver.requests[0].base, storage::sha256(base));
  EXPECT_EQ(giver.requests[1].rate, 0u);
  EXPECT_FALSE(giver.requests[1].base);
}

TEST_F(BlobSourcesTest, UnpacksWithAndWithoutABase) {
  const Blob before = random_blob(3, blob_.size()), blob = moved(before);
  const net::SharedBytes kept = shared(before);
  bool on_base = true;
  Giver giver(loop_, [&](Giver& at, const proto::GetBlob& request) {
    at.say(proto::BlobAnswer{
        .request = request.request, .size = blob.size(), .packed = true, .has_base = on_base});
    const Blob unit = unit_of(blob, on_base ? before : Blob{});
    for (size_t from = 0; from < unit.size(); from += 1000)
      at.chunk(request.request,
               Blob(unit.begin() + static_cast<ptrdiff_t>(from),
                    unit.begin() + static_cast<ptrdiff_t>(std::min(from + 1000, unit.size()))));
  });
  const BulkTransfers::Base base{storage::sha256(before), kept.owner, kept.bytes};
  EXPECT_TRUE(is_given(get(*giver.source(), blob, base), blob));
  on_base = false;
  EXPECT_TRUE(is_given(get(*giver.source(), blob, base), blob));
}

// A base is nobody's reason to keep an old copy.
TEST_F(BlobSourcesTest, ABaseThatHasGoneOrHasAnotherSizeIsNotNamed) {
  net::SharedBytes kept = shared(random_blob(3, blob_.size()));
  const net::SharedBytes shorter = shared(Blob(blob_.size() - 1));
  Giver giver(loop_, [&](Giver& at, const proto::GetBlob& request) { at.give(request.request, blob_); });
  const auto first = get(*giver.source(), blob_, {{{}, kept.owner, kept.bytes}});
  kept = {};
  EXPECT_TRUE(is_given(first, blob_));
  EXPECT_TRUE(is_given(get(*giver.source(), blob_, {{{}, shorter.owner, shorter.bytes}}), blob_));
  for (const proto::GetBlob& request : giver.requests) EXPECT_FALSE(request.base);
}

TEST_F(BlobSourcesTest, WhatASourceDoesNotHaveIsNotFound) {
  ErrorCode code = ErrorCode::NotFound;
  Giver giver(loop_, [&](Giver& at, const proto::GetBlob& request) {
    at.say(proto::BlobAnswer{.request = request.request, .code = code, .message = "no"});
  });
  EXPECT_EQ(error_of(get(giver, blob_)), ErrorCode::NotFound);
  code = ErrorCode::ResourceExhausted;
  EXPECT_EQ(error_of(get(giver, blob_)), ErrorCode::Unavailable) << "of this machine it says nothing";
  EXPECT_EQ(sources_->sources(), 1u);
}

TEST_F(BlobSourcesTest, AsksForSoManyAtATime) {
  BlobSources::Options options;
  options.at_once_max = 4;
  begin(options);
  Giver giver(loop_, [](Giver&, const proto::GetBlob&) {});
  std::vector<std::shared_ptr<Got>> got;
  for (int i = 0; i < 10; ++i) got.push_back(get(giver, blob_));
  ASSERT_TRUE(run_until([&] { return giver.requests.size() == 4; }));
  giver.give(3, blob_);
  EXPECT_TRUE(is_given(got[2], blob_));
  ASSERT_TRUE(run_until([&] { return giver.requests.size() == 5; }));
  giver.script = [&](Giver& at, const proto::GetBlob& request) { at.give(request.request, blob_); };
  for (const uint64_t request : {1, 2, 4, 5}) giver.give(request, blob_);
  for (const auto& one : got) EXPECT_TRUE(is_given(one, blob_));
}

// ---- ways

TEST_F(BlobSourcesTest, TriesAddressesInTurn) {
  Giver giver(loop_, [&](Giver& at, const proto::GetBlob& request) { at.give(request.request, blob_); });
  std::string gone;
  {
    const Giver before(loop_, {});
    gone = before.address();
  }
  proto::BlobSource source = *giver.source();
  source.addresses = {"not an address", gone, giver.address()};
  EXPECT_TRUE(is_given(get(source, blob_), blob_));
  EXPECT_EQ(sources_->sources(), 1u);
}

TEST_F(BlobSourcesTest, WithoutAWayEverythingIsUnavailable) {
  const Giver other(loop_, {});
  for (const std::vector<std::string>& addresses :
       {std::vector<std::string>{}, {"not an address"}, {other.address()}}) {  // which has another key
    const proto::BlobSource source{.peer = identity_->id(), .addresses = addresses};
    const auto first = get(source, blob_), second = get(source, other_);
    EXPECT_EQ(error_of(first), ErrorCode::Unavailable);
    EXPECT_EQ(error_of(second), ErrorCode::Unavailable);
    EXPECT_EQ(sources_->sources(), 0u);
  }
  EXPECT_TRUE(other.requests.empty());
}

TEST_F(BlobSourcesTest, AConnectionThatEndsInTheMiddleEndsAllThatIsUnderWay) {
  Giver giver(loop_, [&](Giver& at, const proto::GetBlob& request) {
    if (request.request == 1) {
      at.say(proto::BlobAnswer{.request = 1, .size = blob_.size()});
      at.chunk(1, Blob(blob_.begin(), blob_.begin() + 50'000));
    }
    if (request.request == 2) at.connection->close(seconds(1));
  });
  const auto first = get(giver, blob_), second = get(giver, other_);
  EXPECT_EQ(error_of(first), ErrorCode::Unavailable);
  EXPECT_EQ(error_of(second), ErrorCode::Unavailable);
  giver.script = [&](Giver& at, const proto::GetBlob& request) { at.give(request.request, blob_); };
  EXPECT_TRUE(is_given(get(giver, blob_), blob_)) << "over the next one";
  EXPECT_EQ(giver.accepted_count, 2);
}

TEST_F(BlobSourcesTest, ASourceThatIsSilentIsGivenUp) {
  Giver giver(loop_, [](Giver&, const proto::GetBlob&) {});
  const auto first = get(giver, blob_), second = get(giver, other_);
  ASSERT_TRUE(run_until([&] { return giver.requests.size() == 2; }));
  pass(29);
  EXPECT_FALSE(first->has_value());
  giver.give(1, blob_);
  EXPECT_TRUE(is_given(first, blob_));
  pass(29);
  EXPECT_FALSE(second->has_value()) << "something came";
  pass(2);
  EXPECT_EQ(error_of(second), ErrorCode::Timeout);
  EXPECT_EQ(sources_->sources(), 0u);
}

TEST_F(BlobSourcesTest, WhoSleptBlamesNobody) {
  Giver giver(loop_, [](Giver&, const proto::GetBlob&) {});
  const auto first = get(giver, blob_);
  ASSERT_TRUE(run_until([&] { return giver.requests.size() == 1; }));
  sources_->on_tick();
  now_ += std::chrono::hours(1);
  sources_->on_tick();
  EXPECT_FALSE(first->has_value());
  giver.give(1, blob_);
  EXPECT_TRUE(is_given(first, blob_));
}

TEST_F(BlobSourcesTest, AConnectionThatIsNotUsedIsClosed) {
  Giver giver(loop_, [&](Giver& at, const proto::GetBlob& request) { at.give(request.request, blob_); });
  EXPECT_TRUE(is_given(get(giver, blob_), blob_));
  pass(59);
  EXPECT_EQ(sources_->sources(), 1u);
  pass(1);
  EXPECT_EQ(sources_->sources(), 0u);
  EXPECT_TRUE(run_until([&] { return giver.is_closed; }));
  EXPECT_TRUE(is_given(get(giver, blob_), blob_));
  EXPECT_EQ(giver.accepted_count, 2);
}

TEST_F(BlobSourcesTest, AConnectionOverWhichNothingWasGivenIsClosedSoon) {
  Giver giver(loop_, [&](Giver& at, const proto::GetBlob& request) {
    at.say(proto::BlobAnswer{.request = request.request, .code = ErrorCode::NotFound, .message = "no"});
  });
  EXPECT_EQ(error_of(get(giver, blob_)), ErrorCode::NotFound);
  pass(1);
  EXPECT_EQ(error_of(get(giver, blob_)), ErrorCode::NotFound);
  pass(1);
  EXPECT_EQ(sources_->sources(), 1u);
  pass(1);
  EXPECT_EQ(sources_->sources(), 0u);
  EXPECT_EQ(giver.accepted_count, 1);
}

TEST_F(BlobSourcesTest, AsManySourcesAsThereMayBe) {
  BlobSources::Options options;
  options.sources_max = 2;
  begin(options);
  const auto give = [&](Giver& at, const proto::GetBlob& request) { at.give(request.request, blob_); };
  Giver a(loop_, {}), b(loop_, {}), c(loop_, give);
  a.script = b.script = [](Giver&, const proto::GetBlob&) {};
  const auto of_a = get(a, blob_), of_b = get(b, blob_);
  EXPECT_EQ(error_of(get(c, blob_)), ErrorCode::Unavailable);
  ASSERT_TRUE(run_until([&] { return a.requests.size() == 1; }));
  a.give(1, blob_);
  EXPECT_TRUE(is_given(of_a, blob_));
  EXPECT_TRUE(is_given(get(c, blob_), blob_)) << "what is not used makes room";
  EXPECT_EQ(sources_->sources(), 2u);
  EXPECT_FALSE(of_b->has_value());
}

TEST_F(BlobSourcesTest, WhatIsAbandonedIsTold) {
  Giver giver(loop_, [](Giver&, const proto::GetBlob&) {});
  const Giver nobody(loop_, {});
  const auto first = get(giver, blob_);
  ASSERT_TRUE(run_until([&] { return giver.requests.size() == 1; }));
  const auto dialled = get(nobody, blob_);
  sources_->abandon({ErrorCode::Cancelled, "the broker was lost"});
  EXPECT_EQ(error_of(first), ErrorCode::Cancelled);
  EXPECT_EQ(error_of(dialled), ErrorCode::Cancelled);
  const auto last = get(giver, blob_);
  sources_.reset();
  EXPECT_EQ(error_of(last), ErrorCode::Cancelled);
  EXPECT_TRUE(run_until([&] { return giver.is_closed; }));
}

// ---- lies

TEST_F(BlobSourcesTest, OtherBytesEndAllThatIsUnderWay) {
  expect_lie([&](Giver& at, const proto::GetBlob& request) {
    if (is_first(request)) at.give(1, random_blob(9, blob_.size()));
  });
  expect_lie([&](Giver& at, const proto::GetBlob& request) {  // the other blob, which it was asked for, too
    if (!is_first(request)) at.give(1, other_);
  });
}

TEST_F(BlobSourcesTest, MoreThanWasPromisedOrAskedForEndsAllThatIsUnderWay) {
  expect_lie([&](Giver& at, const proto::GetBlob& request) {
    if (!is_first(request)) return;
    at.say(proto::BlobAnswer{.request = 1, .size = 1000});
    at.chunk(1, Blob(1001));
  });
  for (const uint64_t size : {blob_.size() + 1, uint64_t{1} << 43})
    for (const bool packed : {false, true})
      expect_lie([&](Giver& at, const proto::GetBlob& request) {
        if (is_first(request)) at.say(proto::BlobAnswer{.request = 1, .size = size, .packed = packed});
      });
}

TEST_F(BlobSourcesTest, UnitsThatAreNoneEndAllThatIsUnderWay) {
  Blob torn = unit_of(moved(Blob(blob_.size())));
  torn[storage::kPackedHeader + 2] ^= std::byte{0x55};
  Blob long_unit = unit_of(blob_);
  long_unit.push_back(std::byte{});
  for (const Blob& units : {random_blob(4, 1000), torn, long_unit, unit_of(other_)})
    expect_lie([&](Giver& at, const proto::GetBlob& request) {
      if (!is_first(request)) return;
      at.say(proto::BlobAnswer{.request = 1, .size = blob_.size(), .packed = true});
      at.chunk(1, units);
    });
}

// Few bytes that stand for many: what is done for one chunk is bounded.
TEST_F(BlobSourcesTest, AChunkOfManyUnitsEndsAllThatIsUnderWay) {
  const Blob large(8 * storage::kPackedUnit), unit = unit_of(Blob(storage::kPackedUnit));
  Blob units;
  for (int i = 0; i < 8; ++i) units.insert(units.end(), unit.begin(), unit.end());
  ASSERT_LT(units.size(), proto::kChunkSizeMax);
  Giver liar(loop_, [&](Giver& at, const proto::GetBlob& request) {
    at.say(proto::BlobAnswer{.request = request.request, .size = large.size(), .packed = true});
    at.chunk(request.request, units);
  });
  EXPECT_EQ(error_of(get(liar, large)), ErrorCode::Corrupted);
  liar.script = [&](Giver& at, const proto::GetBlob& request) {
    at.say(proto::BlobAnswer{.request = request.request, .size = large.size(), .packed = true});
    for (int i = 0; i < 8; ++i) at.chunk(request.request, unit);
  };
  EXPECT_TRUE(is_given(get(liar, large), large));
}

TEST_F(BlobSourcesTest, ABaseThatWasNotNamedEndsAllThatIsUnderWay) {
  for (const bool packed : {false, true})
    expect_lie([&](Giver& at, const proto::GetBlob& request) {
      if (is_first(request))
        at.say(proto::BlobAnswer{.request = 1, .size = blob_.size(), .packed = packed, .has_base = true});
    });
  // Nor one of another size than what comes.
  const net::SharedBytes kept = shared(random_blob(3, blob_.size()));
  Giver liar(loop_, [&](Giver& at, const proto::GetBlob& request) {
    at.say(proto::BlobAnswer{
        .request = request.request, .size = blob_.size() - 4, .packed = true, .has_base = true});
  });
  EXPECT_EQ(error_of(get(*liar.source(), blob_, {{{}, kept.owner, kept.bytes}})), ErrorCode::Corrupted);
}

TEST_F(BlobSourcesTest, WhatWasNotAskedForEndsAllThatIsUnderWay) {
  expect_lie([&](Giver& at, const proto::GetBlob&) { at.chunk(77, blob_); });
  expect_lie([&](Giver& at, const proto::GetBlob&) { at.chunk(1, blob_); });  // without an answer
  expect_lie([&](Giver& at, const proto::GetBlob&) { at.say(proto::BlobAnswer{.request = 77}); });
  expect_lie([&](Giver& at, const proto::GetBlob&) {
    for (int i = 0; i < 2; ++i) at.say(proto::BlobAnswer{.request = 1, .size = 10});
  });
  expect_lie([&](Giver& at, const proto::GetBlob&) { at.say(proto::LinkReady{}); });
  expect_lie([&](Giver& at, const proto::GetBlob&) { at.say(proto::MissingBlobs{.request = 1}); });
  expect_lie([&](Giver& at, const proto::GetBlob&) { at.connection->send({.kind = 77, .head = Blob(10)}); });
  expect_lie([&](Giver& at, const proto::GetBlob&) {
    at.connection->send({.kind = static_cast<uint8_t>(proto::FrameKind::Message), .head = Blob(10)});
  });
}

// Whatever comes, nothing worse than an error comes of it.
TEST_F(BlobSourcesTest, RandomBytesInWhatIsSentAreErrorsOrTheBlob) {
  const Blob before = random_blob(3, blob_.size()), blob = moved(before), unit = unit_of(blob, before);
  const net::SharedBytes kept = shared(before);
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    Giver liar(loop_, [&](Giver& at, const proto::GetBlob& request) {
      at.say(proto::BlobAnswer{
          .request = request.request, .size = blob.size(), .packed = true, .has_base = rng.below(4) != 0});
      Blob sent = unit;
      for (uint64_t i = rng.below(4); i > 0; --i)
        sent[rng.below(rng.below(2) == 0 ? 40 : sent.size())] = static_cast<std::byte>(rng.below(256));
      sent.resize(sent.size() - rng.below(2));
      at.chunk(request.request, sent);
      at.connection->close(seconds(1));
    });
    const auto got = get(*liar.source(), blob, {{storage::sha256(before), kept.owner, kept.bytes}});
    ASSERT_TRUE(run_until([&] { return got->has_value(); }));
    if (**got)
      EXPECT_EQ(***got, blob);
    else
      EXPECT_TRUE((**got).error().code == ErrorCode::Corrupted ||
                  (**got).error().code == ErrorCode::Unavailable);
  }
}

}  // namespace
}  // namespace weft::peer::test
