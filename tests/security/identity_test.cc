#include "security/identity.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/stat.h>

#include <set>
#include <thread>

#include "security/keys.h"
#include "tests/support/scratch.h"

namespace weft::security {
namespace {

using test::Scratch;

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_private(const Scratch& scratch, std::string_view text) {
  ::chmod(scratch.write("identity.pem", text).c_str(), 0600);
}

ErrorCode load_error(const Scratch& scratch) {
  const auto identity = Identity::load_or_create(scratch.folder());
  EXPECT_FALSE(identity);
  if (identity) return ErrorCode::Internal;
  EXPECT_NE(identity.error().message.find("identity.pem"), std::string::npos) << identity.error().message;
  return identity.error().code;
}

TEST(Identity, IsMadeOnceAndThenLoaded) {
  Scratch scratch;
  const auto first = Identity::load_or_create(scratch.folder() / "new" / "folder");
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_TRUE((*first)->was_created());
  for (int i = 0; i < 3; ++i) {
    const auto again = Identity::load_or_create(scratch.folder() / "new" / "folder");
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_FALSE((*again)->was_created());
    EXPECT_EQ((*again)->id(), (*first)->id());
  }
}

TEST(Identity, FileIsForItsOwnerAlone) {
  Scratch scratch;
  ASSERT_TRUE(Identity::load_or_create(scratch.folder()));
  struct stat status {};
  ASSERT_EQ(::stat((scratch.folder() / "identity.pem").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_TRUE(read(scratch.folder() / "identity.pem").starts_with("-----BEGIN PRIVATE KEY-----"));
  const auto files = std::distance(std::filesystem::directory_iterator(scratch.folder()), {});
  EXPECT_EQ(files, 1) << "a temporary file was left";
}

TEST(Identity, FileThatOthersReadIsRefused) {
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0644, 0666, 0777}) {
    Scratch scratch;
    ASSERT_TRUE(Identity::load_or_create(scratch.folder()));
    ::chmod((scratch.folder() / "identity.pem").c_str(), mode);
    EXPECT_EQ(load_error(scratch), ErrorCode::PermissionDenied) << std::oct << mode;
  }
}

TEST(Identity, DamagedFileIsRefusedAndKept) {
  Scratch whole;
  ASSERT_TRUE(Identity::load_or_create(whole.folder()));
  const std::string text = read(whole.folder() / "identity.pem");
  std::string zeros = text;
  for (size_t i = 30; i < 60; ++i) zeros[i] = 'A';
  for (const std::string& bad : {std::string(), std::string("hello"), text.substr(0, text.size() / 2), zeros,
                                 std::string(1 << 20, 'x'), std::string("-----BEGIN PRIVATE KEY-----\n")}) {
    Scratch scratch;
    write_private(scratch, bad);
    EXPECT_EQ(load_error(scratch), ErrorCode::Corrupted) << bad.substr(0, 100);
    EXPECT_EQ(read(scratch.folder() / "identity.pem"), bad);
  }
}

TEST(Identity, OtherKindsOfKeysAreRefused) {
  Scratch scratch;
  KeyPtr key(EVP_EC_gen("P-256"));
  std::unique_ptr<BIO, Release> bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PKCS8PrivateKey(bio.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  write_private(scratch, std::string_view(text, static_cast<size_t>(size)));
  EXPECT_EQ(load_error(scratch), ErrorCode::Corrupted);
}

TEST(Identity, EncryptedKeyIsRefusedWithoutAsking) {
  Scratch scratch;
  const auto identity = Identity::generate();
  std::unique_ptr<BIO, Release> bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PKCS8PrivateKey(bio.get(), (*identity)->keys().key.get(), EVP_aes_128_cbc(), "secret", 6,
                                nullptr, nullptr);
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  write_private(scratch, std::string_view(text, static_cast<size_t>(size)));
  EXPECT_EQ(load_error(scratch), ErrorCode::Corrupted);
}

TEST(Identity, LinksAndFoldersAreNoIdentity) {
  Scratch real, link, folder;
  ASSERT_TRUE(Identity::load_or_create(real.folder() / "a"));
  std::filesystem::create_directories(link.folder());
  std::filesystem::create_symlink(real.folder() / "a" / "identity.pem", link.folder() / "identity.pem");
  EXPECT_FALSE(Identity::load_or_create(link.folder()));
  std::filesystem::remove(link.folder() / "identity.pem");
  std::filesystem::create_directories(folder.folder() / "identity.pem");
  EXPECT_EQ(load_error(folder), ErrorCode::Corrupted);
}

TEST(Identity, StartedTwiceAtOnceThereIsOne) {
  Scratch scratch;
  std::array<PeerId, 4> ids;
  std::vector<std::thread> threads;
  for (PeerId& id : ids)
    threads.emplace_back([&] {
      if (const auto identity = Identity::load_or_create(scratch.folder())) id = (*identity)->id();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(ids[0], PeerId{});
  for (const PeerId& id : ids) EXPECT_EQ(id, ids[0]);
}

TEST(Identity, IdIsTheHashOfThePublicKeyInfo) {
  const auto identity = Identity::generate();
  ASSERT_TRUE(identity);
  unsigned char* der = nullptr;
  const int size = i2d_PUBKEY((*identity)->keys().key.get(), &der);
  PeerId expected;
  EVP_Digest(der, static_cast<size_t>(size), expected.digest.bytes.data(), nullptr, EVP_sha256(), nullptr);
  OPENSSL_free(der);
  EXPECT_EQ((*identity)->id(), expected);
  EXPECT_EQ(peer_id(X509_get0_pubkey((*identity)->keys().certificate.get())), expected);
}

TEST(Identity, CertificateSignsItself) {
  const auto identity = Identity::generate();
  ASSERT_TRUE(identity);
  X509* certificate = (*identity)->keys().certificate.get();
  EXPECT_EQ(X509_verify(certificate, (*identity)->keys().key.get()), 1);
  EXPECT_LT(X509_cmp_current_time(X509_get0_notBefore(certificate)), 0);
  EXPECT_GT(X509_cmp_current_time(X509_get0_notAfter(certificate)), 0);
}

TEST(Identity, EachIsDifferent) {
  std::set<PeerId> ids;
  for (int i = 0; i < 20; ++i) ids.insert((*Identity::generate())->id());
  EXPECT_EQ(ids.size(), 20u);
}

}  // namespace
}  // namespace weft::security
