package tiered.delta;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * One file of a Delta log that must be created at most once, and the rule for an attempt that did not plainly succeed:
 * read the file back. This commit's own id in it: done. Another's: lost, and Delta re-bases. Absent or unreadable:
 * unknown, and only the reader of the table can tell later.
 */
final class Commit {
  /** Delta writes a fresh `txnId` into the commitInfo of every attempt; inside strings its quotes are escaped. */
  private static final Pattern ID = Pattern.compile("\"txnId\":\"([^\"\\\\]+)\"");

  private final Path path;
  private final byte[] bytes;

  Commit(Path path, Iterator<String> lines) {
    this.path = path;
    ByteArrayOutputStream all = new ByteArrayOutputStream();
    while (lines.hasNext()) {
      all.writeBytes((lines.next() + "\n").getBytes(StandardCharsets.UTF_8));
    }
    this.bytes = all.toByteArray();
  }

  byte[] bytes() {
    return bytes;
  }

  /** Returns when the file is this commit; throws FileAlreadyExistsException when it is another's. */
  void settle(IOException failure, Configuration conf) throws IOException {
    byte[] found;
    try (InputStream in = path.getFileSystem(conf).open(path)) {
      found = in.readAllBytes();
    } catch (IOException unread) {
      failure.addSuppressed(unread);
      throw new IOException("It is unknown whether " + path + " was committed: read the table before trying again", failure);
    }
    String own = id(bytes);
    if (own != null && own.equals(id(found))) {
      return;
    }
    if (own == null && Arrays.equals(bytes, found)) {
      throw new IOException("It is unknown whose " + path + " is: the commit has no txnId (commitInfo is off)", failure);
    }
    FileAlreadyExistsException lost = new FileAlreadyExistsException(path.toString());
    lost.initCause(failure);
    throw lost;
  }

  private static String id(byte[] json) {
    Matcher match = ID.matcher(new String(json, StandardCharsets.UTF_8));
    return match.find() ? match.group(1) : null;
  }
}
