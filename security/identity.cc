#include "security/identity.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/kdf.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "security/keys.h"
#include "security/token.h"

namespace weft::security {

namespace fs = std::filesystem;

namespace {

constexpr size_t kFileSizeMax = 64 << 10;

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  bool is_open() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

tl::unexpected<Error> disk_error(const fs::path& path, std::string_view doing) {
  const int code = errno;
  const ErrorCode kind = code == EACCES || code == EPERM || code == EROFS ? ErrorCode::PermissionDenied
                         : code == ENOSPC || code == EDQUOT               ? ErrorCode::ResourceExhausted
                         : code == ENOENT                                 ? ErrorCode::NotFound
                                                                          : ErrorCode::Unavailable;
  return fail(
      kind, path.string() + ": cannot " + std::string(doing) + ": " + std::generic_category().message(code));
}

tl::unexpected<Error> corrupted(const fs::path& path, const std::string& why) {
  return fail(ErrorCode::Corrupted,
              path.string() + ": " + why +
                  "; restore it from a backup, or move it away and a new identity is made "
                  "(others then see somebody new)");
}

// The key in an open file.
Result<KeyPtr> read_key(const File& file, const fs::path& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return disk_error(path, "look at it");
  if (!S_ISREG(status.st_mode)) return corrupted(path, "it is no ordinary file");
  if ((status.st_mode & 077) != 0)
    return fail(ErrorCode::PermissionDenied,
                path.string() + ": others may read this private key; run `chmod 600 " + path.string() + "`");
  std::string text(kFileSizeMax + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return disk_error(path, "read it");
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  if (size > kFileSizeMax) return corrupted(path, "it is too large for a private key");

  std::unique_ptr<BIO, Release> bio(BIO_new_mem_buf(text.data(), static_cast<int>(size)));
  // Without the callback OpenSSL would ask the terminal for the password of an encrypted key.
  const auto no_password = [](char*, int, int, void*) { return 0; };
  KeyPtr key(bio ? PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr) : nullptr);
  OPENSSL_cleanse(text.data(), text.size());
  if (!key) return corrupted(path, "it holds no private key in PKCS#8 PEM form (" + openssl_error() + ")");
  if (EVP_PKEY_get_id(key.get()) != EVP_PKEY_ED25519) return corrupted(path, "its key is not an Ed25519 key");
  return key;
}

Result<KeyPtr> make_key() {
  std::unique_ptr<EVP_PKEY_CTX, Release> context(EVP_PKEY_CTX_new_id(EVP_PKEY_ED25519, nullptr));
  EVP_PKEY* key = nullptr;
  if (!context || EVP_PKEY_keygen_init(context.get()) != 1 || EVP_PKEY_keygen(context.get(), &key) != 1)
    return fail(ErrorCode::Internal, "cannot make an Ed25519 key: " + openssl_error());
  return KeyPtr(key);
}

// Writes a temporary file beside `path`, durably.
Status write_durably(const fs::path& path, const char* bytes, size_t size) {
  const File file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.is_open()) return disk_error(path, "create it");
  for (size_t done = 0; done < size;) {
    const ssize_t wrote = ::write(file.get(), bytes + done, size - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return disk_error(path, "write it");
    done += static_cast<size_t>(wrote);
  }
  if (::fsync(file.get()) != 0) return disk_error(path, "make it durable");
  return {};
}

// Whether `path` now holds this key; false when another process put one there first.
Result<bool> store_key(const fs::path& path, EVP_PKEY* key) {
  std::unique_ptr<BIO, Release> bio(BIO_new(BIO_s_secmem()));
  if (!bio || PEM_write_bio_PKCS8PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1)
    return fail(ErrorCode::Internal, "cannot encode a private key: " + openssl_error());
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);

  std::array<uint8_t, 8> random;
  fill_random(random);
  std::string suffix;
  for (const uint8_t byte : random) suffix += "0123456789abcdef"[byte & 15];
  const fs::path temporary = path.string() + "." + suffix + ".tmp";
  const auto remove = [&] { ::unlink(temporary.c_str()); };
  if (Status written = write_durably(temporary, text, static_cast<size_t>(size)); !written) {
    remove();
    return fail(std::move(written).error());
  }
  // A link is made only where nothing is: of two processes that start at once, one wins and both use its key.
  bool is_ours = ::link(temporary.c_str(), path.c_str()) == 0;
  if (!is_ours && errno != EEXIST) {
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      auto error = disk_error(path, "put the new key there");
      remove();
      return error;
    }
    is_ours = true;
  }
  remove();
  const File folder(::open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open() || ::fsync(folder.get()) != 0) return disk_error(path, "make its folder durable");
  return is_ours;
}

}  // namespace

Identity::Identity() : keys_(std::make_unique<Keys>()) {}
Identity::~Identity() = default;

Status Identity::complete() {
  const std::optional<PeerId> id = peer_id(keys_->key.get());
  if (!id) return fail(ErrorCode::Internal, "cannot encode a public key: " + openssl_error());
  id_ = *id;
  WEFT_TRY(keys_->certificate, make_certificate(keys_->key.get()));
  return {};
}

Status Identity::derive(std::string_view purpose, std::span<uint8_t> out) const {
  std::array<uint8_t, 32> secret{};
  size_t secret_size = secret.size(), out_size = out.size();
  const std::unique_ptr<EVP_PKEY_CTX, Release> context(EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, nullptr));
  const bool done =
      context && EVP_PKEY_get_raw_private_key(keys_->key.get(), secret.data(), &secret_size) == 1 &&
      EVP_PKEY_derive_init(context.get()) == 1 &&
      EVP_PKEY_CTX_set_hkdf_md(context.get(), EVP_sha256()) == 1 &&
      EVP_PKEY_CTX_set1_hkdf_key(context.get(), secret.data(), static_cast<int>(secret_size)) == 1 &&
      EVP_PKEY_CTX_add1_hkdf_info(context.get(), reinterpret_cast<const uint8_t*>(purpose.data()),
                                  static_cast<int>(purpose.size())) == 1 &&
      EVP_PKEY_derive(context.get(), out.data(), &out_size) == 1 && out_size == out.size();
  OPENSSL_cleanse(secret.data(), secret.size());
  if (!done) return fail(ErrorCode::Internal, "cannot derive a secret: " + openssl_error());
  return {};
}

Result<std::unique_ptr<Identity>> Identity::generate() {
  std::unique_ptr<Identity> identity(new Identity);
  WEFT_TRY(identity->keys_->key, make_key());
  WEFT_TRY_STATUS(identity->complete());
  return identity;
}

Result<std::unique_ptr<Identity>> Identity::load(const fs::path& file) {
  const File opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!opened.is_open()) return disk_error(file, "open it");
  std::unique_ptr<Identity> identity(new Identity);
  WEFT_TRY(identity->keys_->key, read_key(opened, file));
  WEFT_TRY_STATUS(identity->complete());
  return identity;
}

Status Identity::save(const fs::path& file) const {
  std::error_code error;
  if (fs::exists(fs::symlink_status(file, error)))
    return fail(ErrorCode::InvalidArgument, file.string() + " is there already: name a file that is not");
  const fs::path path = file.has_parent_path() ? file : fs::path(".") / file;
  WEFT_TRY(const bool is_ours, store_key(path, keys_->key.get()));
  if (!is_ours)
    return fail(ErrorCode::InvalidArgument, file.string() + " was made by somebody else just now");
  return {};
}

Result<std::unique_ptr<Identity>> Identity::load_or_create(const fs::path& folder) {
  const fs::path path = (folder.empty() ? fs::path(".") : folder) / "identity.pem";
  bool created = false;
  for (int attempt = 0;; ++attempt) {
    const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (file.is_open()) {
      std::unique_ptr<Identity> identity(new Identity);
      WEFT_TRY(identity->keys_->key, read_key(file, path));
      identity->created_ = created;
      WEFT_TRY_STATUS(identity->complete());
      return identity;
    }
    if (errno != ENOENT || attempt == 2) return disk_error(path, "open it");
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    if (error) {
      errno = error.value();
      return disk_error(path.parent_path(), "create this folder");
    }
    WEFT_TRY(const KeyPtr key, make_key());
    WEFT_TRY(created, store_key(path, key.get()));
  }
}

}  // namespace weft::security
