package tiered.delta;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * A Delta log in a local directory that several processes may write at once: a commit is a synced temporary file, linked
 * to its name (which fails when the name exists), and a sync of the directory.
 *
 * <p>Delta's own store looks first and renames then, under a lock of one JVM, and syncs nothing.
 */
public final class LinkedFileLogStore extends HadoopFileSystemLogStore {
  public LinkedFileLogStore(Configuration conf) {
    super(conf);
  }

  @Override
  public void write(Path path, Iterator<String> lines, Boolean overwrite, Configuration conf) throws IOException {
    Commit commit = new Commit(path, lines);
    java.nio.file.Path target = java.nio.file.Path.of(path.toUri().getPath());
    java.nio.file.Path folder = target.getParent();
    Files.createDirectories(folder);
    java.nio.file.Path temporary = folder.resolve("." + target.getFileName() + "." + UUID.randomUUID() + ".tmp");
    try {
      writeSynced(temporary, commit.bytes());
      if (overwrite) {
        replace(temporary, target);
      } else {
        link(temporary, target, commit, conf);
      }
    } finally {
      Files.deleteIfExists(temporary);
    }
    try (FileChannel directory = FileChannel.open(folder, StandardOpenOption.READ)) {
      directory.force(true);
    }
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return false;
  }

  private static void writeSynced(java.nio.file.Path file, byte[] bytes) throws IOException {
    try (FileChannel out = FileChannel.open(file, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
      ByteBuffer rest = ByteBuffer.wrap(bytes);
      while (rest.hasRemaining()) {
        out.write(rest);
      }
      out.force(true);
    }
  }

  private static void link(java.nio.file.Path from, java.nio.file.Path to, Commit commit, Configuration conf)
      throws IOException {
    try {
      Files.createLink(to, from);
    } catch (IOException failure) {
      commit.settle(failure, conf); // a network file system may have done it and lost the answer
    }
  }

  /** Hadoop keeps a checksum beside each file that it wrote itself; one of the old content would forbid the new. */
  private static void replace(java.nio.file.Path from, java.nio.file.Path to) throws IOException {
    Files.deleteIfExists(to.resolveSibling("." + to.getFileName() + ".crc"));
    Files.move(from, to, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
  }
}
